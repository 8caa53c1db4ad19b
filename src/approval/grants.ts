import {
  type Grant,
  type GrantMatch,
  GrantScope,
  PermissionAction,
  type PermissionDecision,
  PermissionLayer,
  PermissionReason,
} from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { PermissionRequest } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { usesInput } from "../policy/condition.ts";
import { isVisible } from "../policy/display.ts";
import type { ExpandedAsk, Subject } from "../policy/model.ts";
import { asksForGitSettings, strictest } from "../policy/opinion.ts";
import type { Readings } from "../policy/shell/command.ts";
import { coversCommand } from "../policy/shell/prefix.ts";
import { wildcard } from "../policy/wildcard.ts";

/** An ask in the form that grants match. */
export interface Needed {
  permission: string;
  /** The patterns for which the rules ask. */
  patterns: readonly string[];
  tool: string;
  agent: string;
  /** See Grant.binding. */
  binding: string;
  /** Readings of the patterns that are commands. */
  readings?: Readings | undefined;
}

/** Finds a grant for each pattern; undefined if a pattern has none, so that an approver must answer. */
export function grantsFor(grants: readonly Grant[], needed: Needed): Grant[] | undefined {
  const serving = grants.filter((grant) => serves(grant, needed));
  const found = needed.patterns.flatMap(
    (pattern) => serving.find(({ match }) => matchCovers(match, pattern, needed.readings)) ?? [],
  );
  return needed.patterns.length > 0 && found.length === needed.patterns.length ? found : undefined;
}

/** Finds the grants that cover an open ask: the same as for a call that would ask now. */
export function coversAsk(
  grants: readonly Grant[],
  { permission, patterns, agent, binding, decisions }: PermissionRequest,
  tool: string,
): Grant[] | undefined {
  const asked = decisions.filter(({ action }) => action === PermissionAction.ASK).map(({ pattern }) => pattern);
  if (!asked.every((pattern) => patterns.includes(pattern))) return undefined;
  return grantsFor(grants, { permission, patterns: asked, tool, agent, binding });
}

/** Checks if a grant covers a pattern. Only `wildcard` interprets characters; text with hidden characters is never covered. */
export function matchCovers(match: GrantMatch | undefined, pattern: string, readings?: Readings): boolean {
  if (!isVisible(pattern)) return false;
  switch (match?.match.case) {
    case "exact":
      return match.match.value === pattern;
    case "prefix":
      return coversCommand(match.match.value, pattern, readings);
    case "wildcard":
      return wildcard(pattern, match.match.value);
    default:
      return false;
  }
}

function serves(grant: Grant, { permission, tool, agent, binding }: Needed): boolean {
  return (
    grant.permission === permission &&
    grant.tool === tool &&
    grant.binding === binding &&
    (grant.scope !== GrantScope.AGENT || grant.agent === agent)
  );
}

/** An ask with the decision on each of its patterns. */
export interface JudgedAsk {
  ask: ExpandedAsk;
  decisions: PermissionDecision[];
}

/** Allows each ask whose asking patterns grants cover entirely; all other decisions stay as they are. */
export function withGrants(
  byRules: readonly JudgedAsk[],
  grants: readonly Grant[],
  subject: Subject,
  counts: (grant: Grant, ask: ExpandedAsk) => boolean = () => true,
): { judged: JudgedAsk[]; used: Set<Grant> } {
  const used = new Set<Grant>();
  const judged = byRules.map(({ ask, decisions }) => {
    const asking = decisions.filter(({ action }) => action === PermissionAction.ASK);
    const isFinal = strictest(decisions) === PermissionAction.DENY || isOnceOnly({ ask, decisions }, subject);
    const needed = isFinal ? undefined : neededFor(ask, asking, subject);
    const covering =
      needed &&
      grantsFor(
        grants.filter((grant) => counts(grant, ask)),
        needed,
      );
    if (!covering) return { ask, decisions };
    for (const grant of covering) used.add(grant);
    return { ask, decisions: decisions.map((decision) => allowedBy(covering[asking.indexOf(decision)], decision)) };
  });
  return { judged, used };
}

/** The value of `Grant.binding` for an ask: for a command it includes the working directory. */
export function bindingOf(subject: Subject, ask: ExpandedAsk): string {
  return ask.cwd === undefined ? subject.binding : `${subject.binding}:${ask.cwd}`;
}

/**
 * Checks if no grant may answer: the engine itself asks, a policy file could not be read, or a pipe feeds the command its program.
 * The settings of a repository are an exception for commands, since `git config` and `git remote add` change them all the time.
 */
export function isOnceOnly({ ask, decisions }: JudgedAsk, { tool }: Pick<Subject, "tool">): boolean {
  const maySave = (decision: PermissionDecision) =>
    tool === "bash" && ask.permission === "edit" && ask.alwaysAsk === undefined && asksForGitSettings(decision);
  return decisions.some(
    (decision) =>
      decision.action === PermissionAction.ASK &&
      ((decision.layer === PermissionLayer.ENGINE && !maySave(decision)) ||
        decision.reasonCode === PermissionReason.BROKEN_POLICY ||
        dependsOnInput(decision) ||
        ask.pipelines?.has(decision.pattern) === true),
  );
}

/** Checks if the decision depends on the input beyond its pattern. A grant names only patterns, so it would cover any other input. */
function dependsOnInput({ matches, rule }: PermissionDecision): boolean {
  const unmet = matches.filter(({ unmet, rule }) => unmet !== "" && rule?.action === PermissionAction.ALLOW);
  return usesInput(rule?.when) || unmet.some(({ rule }) => usesInput(rule?.when));
}

/** Builds what grants have to cover; undefined for an ask without patterns, which no grant covers. */
function neededFor(ask: ExpandedAsk, asking: readonly PermissionDecision[], subject: Subject): Needed | undefined {
  const patterns = asking.map(({ pattern }) => pattern);
  if (!patterns.every((pattern) => ask.patterns.includes(pattern))) return undefined;
  const { tool, agent } = subject;
  return {
    permission: ask.permission,
    patterns,
    tool,
    agent,
    binding: bindingOf(subject, ask),
    readings: ask.readings,
  };
}

function allowedBy(grant: Grant | undefined, decision: PermissionDecision): PermissionDecision {
  if (!grant) return decision;
  const action = PermissionAction.ALLOW;
  const by = { layer: PermissionLayer.GRANT, grantId: grant.id, reasonCode: PermissionReason.GRANT };
  return { ...decision, action, ...by, reason: `grant ${grant.id}: ${grant.text}` };
}
