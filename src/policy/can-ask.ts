import { PermissionAction } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { questionPermission } from "../core/ask.ts";
import { isPathKind } from "./rule-list.ts";
import type { Rule } from "./rules.ts";

/**
 * Checks if an ask of a permission can reach an approver. `wide` are the rules about it that count as one list; each of
 * `narrow` counts separately. May return true where the rules never ask, but never false where they can.
 */
export function canAsk(permission: string, wide: readonly Rule[], narrow: readonly (readonly Rule[])[]): boolean {
  const lists = [deciding(wide), ...narrow.map(deciding)];
  if (lists.some(({ rules, complete }) => complete && rules.every(({ action }) => action === DENY))) return false;
  if (asksItself(permission) || !deciding(wide).complete) return true;
  return lists.some(({ rules }) => rules.some(({ action }) => action === ASK));
}

/** For commands, files and addresses the engine itself asks in cases that rules allow, such as protected files; for questions always. */
function asksItself(permission: string): boolean {
  const always = permission === questionPermission;
  return always || permission === "bash" || permission === "webfetch" || isPathKind(permission);
}

/** Returns the rules that can be the last match: the last rule for every pattern, and those after it. */
function deciding(rules: readonly Rule[]): { rules: readonly Rule[]; complete: boolean } {
  const first = rules.findLastIndex(({ pattern, when }) => pattern === "*" && !when);
  return { rules: rules.slice(Math.max(0, first)), complete: first !== -1 };
}

const { ASK, DENY } = PermissionAction;
