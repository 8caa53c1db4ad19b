import { PermissionAction, PermissionLayer, type PermissionReason } from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { Placed } from "./rule-list.ts";
import { actions } from "./rules.ts";

/** A rule that matched, with its layer. */
export interface Match extends Placed {
  layer: PermissionLayer;
  /** The session, agent or file of the rule, where the layer alone does not identify it. */
  source: string;
}

/** The opinion of one list of rules, or of the engine, on one pattern. */
export interface Opinion {
  action: PermissionAction;
  layer: PermissionLayer;
  /** For people. */
  reason: string;
  /** For programs; absent where the matching rule is the reason. */
  code?: PermissionReason;
  /** The rule that decided, if one did. */
  match?: Match;
}

/** Returns the opinion of a rule that matched. */
export function opinionBy(match: Match): Opinion {
  return { action: match.rule.action, layer: match.layer, reason: describe(match), match };
}

/** Describes a match in words: `config rule 3 (bash "git *" allow)`. */
export function describe({ layer, source, index, rule }: Match): string {
  const action = actionNames.get(rule.action);
  const place = `${layerNames[layer]} rule ${index}${named.has(layer) ? ` of ${source}` : ""}`;
  return `${place} (${rule.permission} ${JSON.stringify(rule.pattern)} ${action})`;
}

/** Returns the strictest action: DENY before ASK before ALLOW; ASK if the list is empty. */
export function strictest(decisions: readonly { action: PermissionAction }[]): PermissionAction {
  return strictestOf(decisions)?.action ?? PermissionAction.ASK;
}

/** Returns the strictest item, the first of equals. The enum numbers of the contract rise with strictness. */
export function strictestOf<Item extends { action: PermissionAction }>(items: readonly Item[]): Item | undefined {
  return items.reduce<Item | undefined>((best, item) => (best && best.action >= item.action ? best : item), undefined);
}

const actionNames = new Map<PermissionAction, string>(Object.entries(actions).map(([name, action]) => [action, name]));

const layerNames: Record<PermissionLayer, string> = {
  [PermissionLayer.UNSPECIFIED]: "no",
  [PermissionLayer.DEFAULTS]: "default",
  [PermissionLayer.CONFIG]: "config",
  [PermissionLayer.AGENT]: "agent",
  [PermissionLayer.REQUEST]: "request",
  [PermissionLayer.SESSION]: "session",
  [PermissionLayer.INHERITED]: "inherited",
  [PermissionLayer.GRANT]: "grant",
  [PermissionLayer.ENGINE]: "engine",
  [PermissionLayer.AGENT_LIMITS]: "limits",
  [PermissionLayer.WORKSPACE]: "workspace",
  [PermissionLayer.PRESET]: "preset",
};

/** Layers that exist more than once, so that a description names the source. */
const named: ReadonlySet<PermissionLayer> = new Set([
  PermissionLayer.INHERITED,
  PermissionLayer.AGENT_LIMITS,
  PermissionLayer.WORKSPACE,
]);
