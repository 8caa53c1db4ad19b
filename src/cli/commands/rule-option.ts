import { PermissionAction } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import { UsageError } from "../failure/command-error.ts";

/** The options of commands that evaluate rules without a call. */
export interface RuleOptions {
  agent?: string;
  session?: string;
  rule: string[];
}

/** Reads a rule such as `bash git push * deny`: the first word is the permission, the last the action. */
export function parseRule(text: string): { permission: string; pattern: string; action: PermissionAction } {
  const [, permission, pattern, word] = /^(\S+)\s+(.+)\s+(\S+)$/s.exec(text.trim()) ?? [];
  const action = actions.get(word ?? "");
  if (permission !== undefined && pattern !== undefined && action !== undefined) return { permission, pattern, action };
  throw new UsageError(
    `"${text}" is not a rule`,
    'write it like --rule "bash git push * deny"; actions are allow, ask and deny',
  );
}

const actions = new Map<string, PermissionAction>([
  ["allow", PermissionAction.ALLOW],
  ["ask", PermissionAction.ASK],
  ["deny", PermissionAction.DENY],
]);
