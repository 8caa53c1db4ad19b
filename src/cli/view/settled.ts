import { PermissionOutcome, type PermissionSettled } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import { terminalLine } from "../terminal/terminal-safe.ts";

/** How an ask ended, and by whom, in words: `rejected by alice: use the staging database`. */
export function settledWords({ outcome, by, message }: PermissionSettled): string {
  const who = by === "" ? "" : ` by ${terminalLine(by)}`;
  const why = message === "" ? "" : `: ${terminalLine(message)}`;
  return `${verbs.get(outcome) ?? "settled"}${who}${why}`;
}

/** Whether the call goes on, as it was or with other arguments. */
export function isApproval(outcome: PermissionOutcome): boolean {
  return approvals.includes(outcome);
}

const approvals: readonly PermissionOutcome[] = [
  PermissionOutcome.ONCE,
  PermissionOutcome.ALWAYS,
  PermissionOutcome.EDITED,
];

const verbs = new Map<PermissionOutcome, string>([
  [PermissionOutcome.ONCE, "approved once"],
  [PermissionOutcome.ALWAYS, "approved always"],
  [PermissionOutcome.REJECT, "rejected"],
  [PermissionOutcome.EXPIRED, "expired: nobody answered in time"],
  [PermissionOutcome.WITHDRAWN, "withdrawn"],
  [PermissionOutcome.EDITED, "edited"],
  [PermissionOutcome.DENIED, "denied: the server is unattended"],
]);
