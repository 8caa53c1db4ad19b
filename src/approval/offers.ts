import { create } from "@bufbuild/protobuf";
import {
  ArgvPrefixSchema,
  type GrantMatch,
  GrantScope,
  type Offer,
  OfferSchema,
} from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { PermissionRequest } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { riskWords } from "../core/risk-words.ts";
import { isVisible } from "../policy/display.ts";
import { isGitSettings } from "../policy/protected-files.ts";
import type { Readings } from "../policy/shell/command.ts";
import { type CommandPrefix, prefixOf } from "../policy/shell/prefix.ts";
import { wildcard } from "../policy/wildcard.ts";

/** The parts of an ask that "always" can save. */
interface Savable {
  permission: string;
  /** The patterns for which the rules ask. */
  patterns: readonly string[];
  /** The wildcards that the tool suggests. */
  wildcards: readonly string[];
  agent: string;
  /** The name of the workspace root. */
  workspace: string;
  binding: string;
  /** The number of further calls that a grant covers at most; absent: any. */
  times?: number | undefined;
  /** Readings of the patterns that are commands. */
  readings?: Readings | undefined;
}

type Match = GrantMatch["match"];

/**
 * Builds the offers of an ask, narrowest first: its exact patterns, commands with the same first words, and the wildcards of
 * its tool that cover them; each for the session, the agent and the workspace. Settings of git are offered for the session alone,
 * since they can name programs. None if the text cannot be displayed as it is.
 */
export function offersFor({
  permission,
  patterns,
  wildcards,
  agent,
  workspace,
  binding,
  times = 0,
  readings,
}: Savable): Offer[] {
  if (patterns.length === 0 || patterns.length > maxPatterns || !patterns.every(isShowable)) return [];
  const scopes = permission === "edit" && patterns.some(isGitSettings) ? 1 : undefined;
  const offers = matchesFor(permission, patterns, wildcards, readings).flatMap(({ matches: [match, ...also], what }) =>
    [
      { scope: GrantScope.SESSION, whom: "in this session and its children" },
      { scope: GrantScope.AGENT, whom: `for agent ${agent} in workspace ${workspace}, until revoked` },
      { scope: GrantScope.PROJECT, whom: `for every session in workspace ${workspace}, until revoked` },
    ]
      .slice(0, scopes)
      .map(({ scope, whom }) => ({
        ...{ scope, binding, times, text: `Allow ${what} ${whom}${timesText(times)}` },
        ...(match && { match: { match } }),
        also: also.map((each) => ({ match: each })),
      })),
  );
  return offers.map((offer, i) => create(OfferSchema, { ...offer, id: `o${i + 1}` }));
}

/** Returns the end of the text of an offer that covers so many further calls. */
export const timesText = (times: number): string =>
  times === 0 ? "" : times === 1 ? ", at most once more" : `, at most ${times} more times`;

/** An approver does not read more patterns than this. */
const maxPatterns = 8;

function matchesFor(
  permission: string,
  patterns: readonly string[],
  wildcards: readonly string[],
  readings: Readings | undefined,
): { matches: Match[]; what: string }[] {
  const exact = patterns.map((value): Match => ({ case: "exact", value }));
  const prefixes = permission === "bash" ? prefixesOf(patterns, readings) : [];
  const wider = wildcards.filter((each) => isShowable(each) && patterns.every((pattern) => wildcard(pattern, each)));
  return [
    { matches: exact, what: `${permission} ${listed(patterns.map(quoted))}` },
    ...(prefixes.length === 0
      ? []
      : [
          {
            matches: prefixes.map((value): Match => ({ case: "prefix", value: create(ArgvPrefixSchema, value) })),
            what: `every ${permission} command that begins with the words ${listed(prefixes.map(prefixText))}`,
          },
        ]),
    ...wider
      .filter((value) => !patterns.includes(value))
      .map((value) => ({
        matches: [{ case: "wildcard", value } satisfies Match],
        what: `${permission} of everything that fits ${quoted(value)} (* is any text)`,
      })),
  ];
}

/** The match that an answer "always" saves if it names no offer: the narrowest one, or the tool's own patterns where it offers some. */
export type PlainAlways = "narrowest" | "tool";

/** Returns the patterns that a plain "always" saves, from offers with the narrowest first. */
export function plainPatterns(offers: readonly Offer[], plainAlways: PlainAlways): string[] {
  const own = offers.find(({ match }) => match?.match.case === "wildcard");
  const offer = (plainAlways === "tool" ? own : undefined) ?? offers[0];
  return offer ? patternsOf(offer) : [];
}

/** Returns the offer that a plain "always" saves. The request names its patterns, so that a change of the settings does not count. */
export function plainOffer({ offers, always }: Pick<PermissionRequest, "offers" | "always">): Offer | undefined {
  const wanted = JSON.stringify(always);
  return offers.find((offer) => JSON.stringify(patternsOf(offer)) === wanted) ?? offers[0];
}

/** The patterns of an offer as text: a prefix of a command has ` *` behind its words. */
function patternsOf({ match, also }: Offer): string[] {
  return [match, ...also].flatMap((each) => {
    if (each?.match.case === undefined) return [];
    return each.match.case === "prefix" ? `${each.match.value.words.join(" ")} *` : each.match.value;
  });
}

const quoted = (text: string) => JSON.stringify(text);
const listed = (texts: readonly string[]) => texts.join(" or ");

/** The beginnings of all commands, each once; none if a command has none. */
function prefixesOf(patterns: readonly string[], readings: Readings | undefined): CommandPrefix[] {
  const found = patterns.map((pattern) => prefixOf(pattern, readings));
  if (!found.every((prefix) => prefix !== undefined)) return [];
  return [...new Map(found.map((prefix) => [JSON.stringify(prefix), prefix])).values()];
}

/** The words of a beginning, with the options that a command must have and the risks that it may have. */
function prefixText({ words, riskKinds, options }: CommandPrefix): string {
  const only = options.length === 0 ? "no options" : `with ${options.map(quoted).join(" ")}`;
  const risks = riskKinds.map((kind) => riskWords.get(kind) ?? "has a risk");
  const risk = risks.length === 0 ? "no risk" : `no risk but: ${risks.join(", ")}`;
  return `${words.map(quoted).join(" ")} (${only}; ${risk})`;
}

const maxPatternBytes = 4_096;

/** Checks if an approver sees all of a text: nothing too long, invisible, or reordering the text around it. */
function isShowable(text: string): boolean {
  return text !== "" && Buffer.byteLength(text) <= maxPatternBytes && isVisible(text) && !/[\t\n]/.test(text);
}
