import { ToolEffects, ToolErrorReason } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { enumWord } from "./words.ts";

/** The reason why a call failed, such as `executor lost`. */
export function errorReasonWords(reason: ToolErrorReason): string {
  return enumWord(ToolErrorReason, reason);
}

/** The effects that a failed call may have had. */
export function effectsWords(effects: ToolEffects): string {
  return effects === ToolEffects.NONE ? "nothing was changed" : "it may have changed something";
}
