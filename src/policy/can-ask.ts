import { PermissionAction } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { isPathKind } from "./rule-list.ts";
import type { Rule } from "./rules.ts";

/**
 * Whether something of a permission can end in a question. `wide` are the rules about it that count as one list, each of
 * `narrow` a list of its own. It may say yes where the rules leave no room for it, never no where they do.
 */
export function canAsk(permission: string, wide: readonly Rule[], narrow: readonly (readonly Rule[])[]): boolean {
  const lists = [deciding(wide), ...narrow.map(deciding)];
  if (lists.some(({ rules, complete }) => complete && rules.every(({ action }) => action === DENY))) return false;
  if (asksItself(permission) || !deciding(wide).complete) return true;
  return lists.some(({ rules }) => rules.some(({ action }) => action === ASK));
}

/** Of commands, files and addresses the engine itself asks about some that rules allow: what it cannot read, protected files. */
function asksItself(permission: string): boolean {
  return permission === "bash" || permission === "webfetch" || isPathKind(permission);
}

/** The rules that can be the last match: the last one for every pattern, and what follows it. */
function deciding(rules: readonly Rule[]): { rules: readonly Rule[]; complete: boolean } {
  const first = rules.findLastIndex(({ pattern }) => pattern === "*");
  return { rules: rules.slice(Math.max(0, first)), complete: first !== -1 };
}

const { ASK, DENY } = PermissionAction;
