import { create } from "@bufbuild/protobuf";
import {
  ArgvPrefixSchema,
  type Grant,
  type GrantMatch,
  GrantScope,
  type Offer,
  OfferSchema,
  PermissionAction,
} from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { PermissionRequest } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { isVisible } from "../policy/display.ts";
import { beginsWith, prefixOf } from "../policy/shell/prefix.ts";
import { wildcard } from "../policy/wildcard.ts";

const maxPatternBytes = 4_096;

/** What a call needs to be allowed, as grants see it. */
export interface Needed {
  permission: string;
  /** Those for which the rules ask. */
  patterns: readonly string[];
  tool: string;
  agent: string;
  /** See Grant.binding. */
  binding: string;
}

/** The grants by which nobody needs to be asked, one for each pattern; undefined where a pattern has none. */
export function grantsFor(grants: readonly Grant[], needed: Needed): Grant[] | undefined {
  const serving = grants.filter((grant) => serves(grant, needed));
  const found = needed.patterns.flatMap((pattern) => serving.find(({ match }) => matchCovers(match, pattern)) ?? []);
  return needed.patterns.length > 0 && found.length === needed.patterns.length ? found : undefined;
}

/** What `grantsFor` finds for an open ask: the same as for the call that would ask it now. */
export function coversAsk(
  grants: readonly Grant[],
  { permission, patterns, agent, binding, decisions }: PermissionRequest,
  tool: string,
): Grant[] | undefined {
  const asked = decisions.filter(({ action }) => action === PermissionAction.ASK).map(({ pattern }) => pattern);
  if (!asked.every((pattern) => patterns.includes(pattern))) return undefined;
  return grantsFor(grants, { permission, patterns: asked, tool, agent, binding });
}

/** Whether a grant covers a pattern. Only `wildcard` gives characters a meaning; text that hides something is never covered. */
export function matchCovers(match: GrantMatch | undefined, pattern: string): boolean {
  if (!isVisible(pattern)) return false;
  switch (match?.match.case) {
    case "exact":
      return match.match.value === pattern;
    case "prefix":
      return match.match.value.words.length > 0 && beginsWith(pattern, match.match.value.words);
    case "wildcard":
      return wildcard(pattern, match.match.value);
    default:
      return false;
  }
}

/** What an ask is about, as far as "always" can save it. */
interface Savable {
  permission: string;
  /** Those for which the rules ask. */
  patterns: readonly string[];
  /** The wildcards that the tool would have saved. */
  wildcards: readonly string[];
  agent: string;
  /** The name of the workspace root. */
  workspace: string;
  binding: string;
}

type Match = GrantMatch["match"];

/**
 * What "always" may save for an ask, narrowest first: exactly its patterns, commands that begin like them, and what its tool
 * asked for that covers them; each for the session, the agent, the workspace. Nothing where that could not be shown as it is.
 */
export function offersFor({ permission, patterns, wildcards, agent, workspace, binding }: Savable): Offer[] {
  if (patterns.length === 0 || patterns.length > maxPatterns || !patterns.every(isShowable)) return [];
  const offers = matchesFor(permission, patterns, wildcards).flatMap(({ matches: [match, ...also], what }) =>
    [
      { scope: GrantScope.SESSION, whom: "in this session and its children" },
      { scope: GrantScope.AGENT, whom: `for agent ${agent} in workspace ${workspace}, until revoked` },
      { scope: GrantScope.PROJECT, whom: `for every session in workspace ${workspace}, until revoked` },
    ].map(({ scope, whom }) => ({
      ...{ scope, binding, text: `Allow ${what} ${whom}` },
      ...(match && { match: { match } }),
      also: also.map((each) => ({ match: each })),
    })),
  );
  return offers.map((offer, i) => create(OfferSchema, { ...offer, id: `o${i + 1}` }));
}

/** More than this nobody reads. */
const maxPatterns = 8;

function matchesFor(
  permission: string,
  patterns: readonly string[],
  wildcards: readonly string[],
): { matches: Match[]; what: string }[] {
  const exact = patterns.map((value): Match => ({ case: "exact", value }));
  const prefixes = permission === "bash" ? distinct(patterns.flatMap((pattern) => [prefixOf(pattern) ?? []])) : [];
  const hasPrefixes = prefixes.length > 0 && prefixes.every((words) => words.length > 0);
  const wider = wildcards.filter((each) => isShowable(each) && patterns.every((pattern) => wildcard(pattern, each)));
  return [
    { matches: exact, what: `${permission} ${listed(patterns.map(quoted))}` },
    ...(hasPrefixes
      ? [
          {
            matches: prefixes.map((words): Match => ({ case: "prefix", value: create(ArgvPrefixSchema, { words }) })),
            what: `every ${permission} command that begins with the words ${listed(prefixes.map((words) => words.map(quoted).join(" ")))}`,
          },
        ]
      : []),
    ...wider
      .filter((value) => !patterns.includes(value))
      .map((value) => ({
        matches: [{ case: "wildcard", value } satisfies Match],
        what: `${permission} of everything that fits ${quoted(value)} (* is any text)`,
      })),
  ];
}

const quoted = (text: string) => JSON.stringify(text);
const listed = (texts: readonly string[]) => texts.join(" or ");

function distinct(lists: readonly string[][]): string[][] {
  return [...new Map(lists.map((words) => [JSON.stringify(words), words])).values()];
}

function serves(grant: Grant, { permission, tool, agent, binding }: Needed): boolean {
  return (
    grant.permission === permission &&
    grant.tool === tool &&
    grant.binding === binding &&
    (grant.scope !== GrantScope.AGENT || grant.agent === agent)
  );
}

/** Whether a person sees all of a text: nothing too long, invisible, or reordering what stands around it. */
function isShowable(text: string): boolean {
  return text !== "" && Buffer.byteLength(text) <= maxPatternBytes && isVisible(text) && !/[\t\n]/.test(text);
}
