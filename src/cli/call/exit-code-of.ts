import { ToolErrorReason, type ToolPart } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { failedCommandWords } from "../../view/calls.ts";
import { exitCodes } from "../exit-codes.ts";

/** Maps the terminal state of a call to the exit code of the command that ran it. */
export function exitCodeOf(part: ToolPart): number {
  const { state } = part;
  if (state.case === "completed") return failedCommandWords(part) === "" ? exitCodes.ok : exitCodes.commandFailed;
  if (state.case !== "error") return exitCodes.lost;
  return exitCodeOfReason(state.value.reason);
}

/** Maps the reason of a failure to an exit code. */
export function exitCodeOfReason(reason: ToolErrorReason): number {
  return byReason.get(reason) ?? exitCodes.failed;
}

const byReason = new Map<ToolErrorReason, number>([
  [ToolErrorReason.INVALID_INPUT, exitCodes.usage],
  [ToolErrorReason.UNKNOWN_TOOL, exitCodes.usage],
  [ToolErrorReason.STALE_TOOL, exitCodes.usage],
  [ToolErrorReason.DENIED, exitCodes.refused],
  [ToolErrorReason.GUARD_NOT_LOADED, exitCodes.refused],
  [ToolErrorReason.REJECTED, exitCodes.refused],
  [ToolErrorReason.EXPIRED, exitCodes.refused],
  [ToolErrorReason.TIMEOUT, exitCodes.cancelled],
  [ToolErrorReason.CANCELLED, exitCodes.cancelled],
  [ToolErrorReason.EXECUTOR_LOST, exitCodes.lost],
  [ToolErrorReason.NOT_REPORTED, exitCodes.lost],
  [ToolErrorReason.RESULT_NOT_STORED, exitCodes.lost],
]);
