import { PermissionAction } from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { Rule } from "../../src/policy/rules.ts";
import { wildcard } from "../../src/policy/wildcard.ts";

/** Reference implementation: over all lists in order the last matching rule decides; without a match the action is ASK. */
export function evaluate(permission: string, pattern: string, ...rulesets: (readonly Rule[])[]): Rule {
  const meets = (rule: Rule) =>
    wildcard(permission, rule.permission, { slashes: true }) && wildcard(pattern, rule.pattern, { slashes: true });
  return rulesets.flat().findLast(meets) ?? { permission, pattern: "*", action: PermissionAction.ASK };
}
