import {
  PermissionAction,
  type PermissionDecision,
  PermissionLayer,
  PermissionReason,
  type PermissionRule,
} from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { TextFilter } from "./outcomes.ts";

/** Explains in a sentence why a pattern is allowed, asked or denied. */
export function decisionWords(
  { action, reasonCode, layer, rule, reason }: PermissionDecision,
  filter: TextFilter,
): string {
  if (reasonCode === PermissionReason.NO_RULE && rule === undefined) {
    return action === PermissionAction.ALLOW
      ? "No rule asks for approval or denies it."
      : "No rule matches, so it needs approval.";
  }
  if (reasonCode !== PermissionReason.RULE || rule === undefined) {
    const why = filter(reason).replace(/^engine: (.*): always asked$/s, "Toolgate asks for this each time: $1");
    return `${why.replace(/^engine: /, "Toolgate itself: ")}.`;
  }
  return `${layerWords(layer)} says ${ruleWords(rule, filter)}.`;
}

/** A rule on one line, such as `bash “git push *” = ask`. */
export function ruleWords({ permission, pattern, action, when }: PermissionRule, filter: TextFilter): string {
  const condition = when === "" ? "" : ` when ${filter(when)}`;
  return `${filter(permission)} “${filter(pattern)}” = ${actionWord(action)}${condition}`;
}

/** `allow`, `ask` or `deny`. */
export function actionWord(action: PermissionAction): string {
  return actions.get(action) ?? "ask";
}

/** The source of a rule. */
export function layerWords(layer: PermissionLayer): string {
  return layers.get(layer) ?? "A rule";
}

const actions: ReadonlyMap<PermissionAction, string> = new Map([
  [PermissionAction.ALLOW, "allow"],
  [PermissionAction.ASK, "ask"],
  [PermissionAction.DENY, "deny"],
]);

const layers: ReadonlyMap<PermissionLayer, string> = new Map([
  [PermissionLayer.DEFAULTS, "The built-in policy"],
  [PermissionLayer.PRESET, "The preset"],
  [PermissionLayer.CONFIG, "The configuration"],
  [PermissionLayer.AGENT, "The agent’s configuration"],
  [PermissionLayer.AGENT_LIMITS, "The agent’s limits"],
  [PermissionLayer.REQUEST, "The request itself"],
  [PermissionLayer.SESSION, "The session’s own rules"],
  [PermissionLayer.INHERITED, "A parent session"],
  [PermissionLayer.GRANT, "A grant"],
  [PermissionLayer.ENGINE, "Toolgate itself"],
  [PermissionLayer.WORKSPACE, "The workspace’s .opencode/config.toml"],
]);
