import { type Grant, type GrantMatch, GrantScope, PermissionAction } from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { PermissionRequest } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { isVisible } from "../policy/display.ts";
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
