import { ToolErrorReason, ToolErrorReasonSchema, type ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { type CommandExit, commandFailureOf } from "../core/command-failure.ts";

/** Outcome of a call for log, metrics and spans. */
export interface CallEnding {
  /** False for an error, and for a completed call whose command failed; absent if the outcome is not known. */
  success?: boolean;
  /** Reason of an error as one word, such as `timeout`. */
  reason?: string;
  /** The end of the command of a completed call, if that failed. */
  commandFailure?: CommandExit;
  /** Time from the start mark to the end; absent if the body was never entered. */
  durationMs?: number;
  /** Size of the tool's output before truncation. */
  outputBytes: number;
}

/** Returns the outcome of a call from its terminal part. */
export function describeEnd({ state }: ToolPart): CallEnding {
  if (state.case !== "completed" && state.case !== "error") return { success: false, outputBytes: 0 };
  const { time, metadata } = state.value;
  const size = metadata?.originalSize;
  const commandFailure = state.case === "completed" ? commandFailureOf(metadata) : undefined;
  const ran = state.case === "completed" || (time !== undefined && time.end > time.start);
  const isUnknown = state.case === "error" && state.value.reason === ToolErrorReason.NOT_REPORTED;
  return {
    ...(!isUnknown && { success: state.case === "completed" && commandFailure === undefined }),
    ...(commandFailure && { commandFailure }),
    ...(state.case === "error" && { reason: wordOf(state.value.reason) }),
    ...(ran && time && { durationMs: time.end - time.start }),
    outputBytes: typeof size === "number" ? size : 0,
  };
}

function wordOf(reason: ToolErrorReason): string {
  return ToolErrorReasonSchema.value[reason]?.localName.toLowerCase() ?? String(reason);
}
