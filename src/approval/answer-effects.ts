import type { JsonObject } from "@bufbuild/protobuf";
import type { ToolErrorReason, ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";

/** Effects of an answer on the waiting call. The life of a call implements them; the store writes call and ask in one step. */
export interface AnswerEffects {
  /** Returns the part in its terminal error state. */
  fail(part: ToolPart, reason: ToolErrorReason, error: string): ToolPart;
  /** Returns the part with other arguments and the difference for the model; throws if the call's tool cannot take them. */
  replaceInput(
    call: { part: ToolPart; workspace: string },
    input: JsonObject,
    by: string,
  ): { part: ToolPart; difference: string } | "no difference";
}
