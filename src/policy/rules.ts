import { PermissionAction, type PermissionRule } from "../../gen/opencode/tool/v1/permission_pb.ts";

/** The fields of a rule, without the message type; `when` is its condition, absent or empty if it always holds. */
export type Rule = Pick<PermissionRule, "permission" | "pattern" | "action"> & Partial<Pick<PermissionRule, "when">>;

/** An action as written in configuration. */
export type ActionName = keyof typeof actions;

/** An action that holds only under a condition. */
export interface ConditionalAction {
  action: ActionName;
  when: string;
}

/** Rules as written in configuration: an action for everything, or by permission, or by permission and pattern, in order. */
export type RuleConfig =
  | ActionName
  | { [permission: string]: ActionName | { [pattern: string]: ActionName | ConditionalAction } };

/** Actions by the names of the configuration. */
export const actions = {
  allow: PermissionAction.ALLOW,
  ask: PermissionAction.ASK,
  deny: PermissionAction.DENY,
} as const;

/** Converts configuration into rules, in its order, with the home directory expanded in patterns. */
export function fromConfig(config: RuleConfig, home: string): Rule[] {
  if (typeof config === "string") return [{ permission: "*", pattern: "*", action: actions[config] }];
  return Object.entries(config).flatMap(([permission, value]) =>
    typeof value === "string"
      ? [{ permission, pattern: "*", action: actions[value] }]
      : Object.entries(value).map(([pattern, action]) => ({
          permission,
          pattern: expandHome(pattern, home),
          ...(typeof action === "string"
            ? { action: actions[action] }
            : { action: actions[action.action], when: action.when }),
        })),
  );
}

/** Expands the home directory in a pattern that is `~` or starts with `~/` or `$HOME`; `~name` stays as it is. */
export function expandHome(pattern: string, home: string): string {
  if (pattern === "~" || pattern.startsWith("~/")) return home + pattern.slice(1);
  // Also `$HOMEx`, as opencode does.
  return pattern.startsWith("$HOME") ? home + pattern.slice("$HOME".length) : pattern;
}
