import { ToolEffects, ToolErrorReason, type ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { failed } from "./state.ts";

/**
 * Returns the terminal part of a call that was open in a backup. Its effects are unknown even if it is pending there: after the
 * backup it may have been approved and run.
 */
export function endOfRestored(part: ToolPart, now: number): ToolPart {
  const error =
    "The store was restored from a backup in which this call was open. It may have run after the backup: check its effects before you repeat it.";
  const ended = failed(part, { reason: ToolErrorReason.EXECUTOR_LOST, error }, now);
  if (ended.state.case !== "error") return ended;
  return { ...ended, state: { case: "error", value: { ...ended.state.value, effects: ToolEffects.UNKNOWN } } };
}
