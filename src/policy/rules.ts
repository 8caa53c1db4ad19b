import { PermissionAction, type PermissionRule } from "../../gen/opencode/tool/v1/permission_pb.ts";

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
