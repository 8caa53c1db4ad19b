import { PermissionAction, type PermissionRule } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { wildcard } from "./wildcard.ts";

/** A rule without what makes it a message. */
export type Rule = Pick<PermissionRule, "permission" | "pattern" | "action">;

/** An action as configuration spells it. */
export type ActionName = keyof typeof actions;

/** Rules as configuration spells them: an action for everything, or by permission, or by permission and pattern, in order. */
export type RuleConfig = ActionName | { [permission: string]: ActionName | { [pattern: string]: ActionName } };

/** The actions by the names that configuration and people use. */
export const actions = {
  allow: PermissionAction.ALLOW,
  ask: PermissionAction.ASK,
  deny: PermissionAction.DENY,
} as const;

/**
 * Decides by the last rule that matches, and asks if none does. This is the law in its plainest form, which opencode's
 * rules were written for: the backslash rule holds for every permission. `compileRules` is what the engine uses.
 */
export function evaluate(permission: string, pattern: string, ...rulesets: (readonly Rule[])[]): Rule {
  const meets = (rule: Rule) =>
    wildcard(permission, rule.permission, { slashes: true }) && wildcard(pattern, rule.pattern, { slashes: true });
  return merge(...rulesets).findLast(meets) ?? { permission, pattern: "*", action: PermissionAction.ASK };
}

/** Appends rule lists to one another: later ones win, nothing is dropped. */
export function merge(...rulesets: (readonly Rule[])[]): Rule[] {
  return rulesets.flat();
}

/** Turns configuration into rules, in its order. A pattern that starts with the home folder gets its path. */
export function fromConfig(config: RuleConfig, home: string): Rule[] {
  if (typeof config === "string") return [{ permission: "*", pattern: "*", action: actions[config] }];
  return Object.entries(config).flatMap(([permission, value]) =>
    typeof value === "string"
      ? [{ permission, pattern: "*", action: actions[value] }]
      : Object.entries(value).map(([pattern, action]) => ({
          permission,
          pattern: expandHome(pattern, home),
          action: actions[action],
        })),
  );
}

/** Puts the home folder where a pattern starts with `~`, `~/` or `$HOME`; `~name` stays as it is. */
export function expandHome(pattern: string, home: string): string {
  if (pattern === "~" || pattern.startsWith("~/")) return home + pattern.slice(1);
  // Also `$HOMEx`, as opencode does.
  return pattern.startsWith("$HOME") ? home + pattern.slice("$HOME".length) : pattern;
}

/**
 * The tools that opencode hides from a model: those for which the last rule of their permission denies every pattern.
 * A later rule for a part shows the tool again; `hides` of the policy looks at what would be decided instead.
 */
export function disabled(tools: readonly string[], ruleset: readonly Rule[]): string[] {
  return tools.filter((tool) => {
    const permission = permissionOf(tool);
    const last = ruleset.findLast((rule) => wildcard(permission, rule.permission, { slashes: true }));
    return last?.pattern === "*" && last.action === PermissionAction.DENY;
  });
}

/** The permission that a tool of this name asks for: all that edit ask `edit`, others their own name. */
export function permissionOf(tool: string): string {
  return editors.has(tool) ? "edit" : tool;
}

const editors = new Set(["edit", "write", "apply_patch", "multiedit"]);
