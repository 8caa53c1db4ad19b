import { ToolEffects, ToolErrorReason, type ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { failed } from "./state.ts";

/**
 * Returns the terminal part of a call that was open in a backup. Its effects are unknown even if it is pending there: after the
 * backup it may have been approved and run.
 */
export const endOfRestored = (part: ToolPart, now: number): ToolPart =>
  uncertainEnd(
    part,
    now,
    "The store was restored from a backup in which this call was open. It may have run after the backup: check its effects before you repeat it.",
  );

/** Returns the terminal part of a call whose start mark a failover may have lost. */
export const endOfFailedOver = (part: ToolPart, now: number): ToolPart =>
  uncertainEnd(
    part,
    now,
    "A failover of the store lost acknowledged work of this session, or it cannot be ruled out. The call may have run before: it is not run again, check its effects before you repeat it.",
  );

function uncertainEnd(part: ToolPart, now: number, error: string): ToolPart {
  const ended = failed(part, { reason: ToolErrorReason.EXECUTOR_LOST, error }, now);
  if (ended.state.case !== "error") return ended;
  return { ...ended, state: { case: "error", value: { ...ended.state.value, effects: ToolEffects.UNKNOWN } } };
}
