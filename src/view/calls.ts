import { ToolEffects, ToolErrorReason, type ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { commandFailureOf, commandFailureWords } from "../core/command-failure.ts";
import { enumWord } from "./words.ts";

/** The reason why a call failed, such as `executor lost`. */
export function errorReasonWords(reason: ToolErrorReason): string {
  if (reason === ToolErrorReason.NOT_REPORTED) return "approved, outcome not reported";
  return enumWord(ToolErrorReason, reason);
}

/** Tests for a call that an agent may have run without a report: neither a success nor a failure. */
export function isUnreported({ state }: Pick<ToolPart, "state">): boolean {
  return state.case === "error" && state.value.reason === ToolErrorReason.NOT_REPORTED;
}

/** The effects that a failed call may have had. */
export function effectsWords(effects: ToolEffects): string {
  return effects === ToolEffects.NONE ? "nothing was changed" : "it may have changed something";
}

/** Describes the failure of a completed call's command, such as `exit code 3`; empty if it succeeded, or if the call runs no command. */
export function failedCommandWords({ state }: Pick<ToolPart, "state">): string {
  const failure = state.case === "completed" ? commandFailureOf(state.value.metadata) : undefined;
  return failure === undefined ? "" : commandFailureWords(failure);
}
