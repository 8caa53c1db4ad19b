import { ToolErrorReason, type ToolPart } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { exitCodes } from "../exit-codes.ts";

/** Maps the terminal state of a call to the exit code of the command that ran it. */
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
