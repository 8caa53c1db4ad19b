import { PermissionAction, PermissionLayer } from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { Placed } from "./rule-list.ts";
import { actions } from "./rules.ts";

/** A rule that matched, and in which layer. */
export interface Match extends Placed {
  layer: PermissionLayer;
}

/** What one list of rules, or the engine, says about one pattern. */
export interface Opinion {
  action: PermissionAction;
  layer: PermissionLayer;
  /** For a person. */
  reason: string;
  /** The rule that decided, if one did. */
  match?: Match;
}

/** The opinion of a rule that matched. */
export function opinionBy(match: Match): Opinion {
  return { action: match.rule.action, layer: match.layer, reason: describe(match), match };
}

/** A match in words: `config rule 3 (bash "git *" allow)`. */
export function describe({ layer, index, rule }: Match): string {
  const action = Object.entries(actions).find(([, value]) => value === rule.action)?.[0];
  return `${layerNames[layer]} rule ${index} (${rule.permission} ${JSON.stringify(rule.pattern)} ${action})`;
}

/** The strictest action: DENY before ASK before ALLOW; ASK if there is none. */
export function strictest(decisions: readonly { action: PermissionAction }[]): PermissionAction {
  return strictestOf(decisions)?.action ?? PermissionAction.ASK;
}

/** Of several the strictest; of equals the first. The numbers of the contract rise with strictness. */
export function strictestOf<Item extends { action: PermissionAction }>(items: readonly Item[]): Item | undefined {
  return items.reduce<Item | undefined>((best, item) => (best && best.action >= item.action ? best : item), undefined);
}

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
};
