import { ToolErrorReason, type ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";

/** What the process exits with; scripts rely on these numbers. */
export const exitCodes = {
  ok: 0,
  failed: 1,
  usage: 2,
  refused: 3,
  cancelled: 4,
  lost: 5,
  unreachable: 6,
} as const;

/** The exit codes as `toolgate --help` explains them. */
export const exitCodesHelp = `
Exit codes:
  0  completed
  1  the tool failed, an answer came too late, or a configuration or an audit has errors
  2  bad usage or input: unknown tool, session or ask, input that does not fit
  3  refused: denied by a rule, rejected by a person, or nobody answered in time
  4  cancelled or timed out
  5  what became of the call is not known: its executor was lost, or the store is another one
  6  the server is not reachable, or does not let you`;

/** What a process that ran this call exits with. */
export function exitCodeOf({ state }: ToolPart): number {
  if (state.case === "completed") return exitCodes.ok;
  if (state.case !== "error") return exitCodes.lost;
  return byReason.get(state.value.reason) ?? exitCodes.failed;
}

const byReason = new Map<ToolErrorReason, number>([
  [ToolErrorReason.INVALID_INPUT, exitCodes.usage],
  [ToolErrorReason.UNKNOWN_TOOL, exitCodes.usage],
  [ToolErrorReason.STALE_TOOL, exitCodes.usage],
  [ToolErrorReason.DENIED, exitCodes.refused],
  [ToolErrorReason.REJECTED, exitCodes.refused],
  [ToolErrorReason.EXPIRED, exitCodes.refused],
  [ToolErrorReason.TIMEOUT, exitCodes.cancelled],
  [ToolErrorReason.CANCELLED, exitCodes.cancelled],
  [ToolErrorReason.EXECUTOR_LOST, exitCodes.lost],
]);
