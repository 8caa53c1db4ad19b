import type { JsonObject } from "@bufbuild/protobuf";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import { ToolExecutor, type ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { AnswerEffects } from "../approval/answer-effects.ts";
import { canonicalJson } from "../core/canonical-json.ts";
import { RequestError } from "../core/request-error.ts";
import { difference } from "../policy/display.ts";
import { InvalidInput } from "../tool/errors.ts";
import type { ForeignTools } from "../tool/foreign-tools.ts";
import type { Registry } from "../tool/registry.ts";
import type { Tool } from "../tool/tool.ts";
import { checkLevels, checkSize } from "./check-size.ts";
import { edited, inputOf } from "./state.ts";

/** Creates the function that applies an approver's edit to a call: only input that the call's tool accepts replaces its input. */
export function createInputEdit({
  registry,
  foreign,
  inputBytes,
}: {
  registry: Registry;
  foreign: ForeignTools;
  inputBytes: number;
}): AnswerEffects["replaceInput"] {
  return ({ part, workspace }, input, by) => {
    const before = inputOf(part);
    if (canonicalJson(before) === canonicalJson(input)) return "no difference";
    checkLevels("input", input);
    checkSize("input", input, Math.min(inputBytes, maxEditedBytes));
    if (!part.originalInput) checkSize("the original input", before, maxEditedBytes);
    const isDelegated = part.executor === ToolExecutor.DELEGATED;
    decode(isDelegated ? foreign.tool(part.tool) : registry.get(part.tool, workspace), part.tool, input);
    return { part: edited(part, input, by), difference: difference(before, input) };
  };
}

/** Size of each input of an edit: its event holds both. */
const maxEditedBytes = 480 * 1024;

/** Returns the note about edited input for the model; undefined if the input was not edited. */
export function noteOfEdit(part: ToolPart): string | undefined {
  if (!part.originalInput) return undefined;
  return `The user changed the arguments of this call before it ran: ${difference(part.originalInput, inputOf(part))}`;
}

function decode(tool: Tool | undefined, name: string, input: JsonObject): void {
  if (!tool) {
    throw new RequestError(
      ErrorReason.UNKNOWN_TOOL,
      `the tool "${name}" of this call is no longer registered; reject it`,
      {
        tool: name,
      },
    );
  }
  try {
    tool.decode(input);
  } catch (cause) {
    if (!(cause instanceof InvalidInput)) throw cause;
    throw new RequestError(ErrorReason.INVALID_INPUT, cause.message, { tool: name }, { cause });
  }
}
