import type { JsonObject, JsonValue } from "@bufbuild/protobuf";
import type { ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";

/** Only an ended part can end a call. */
export function checkEnded(part: ToolPart): void {
  if (part.state.case === "completed" || part.state.case === "error") return;
  throw new Error(`call ${part.callId} cannot end as ${part.state.case ?? "nothing"}`);
}

/** What is left of a call after a week: which one it was, and how it ended. */
export function tombstone({ state, ...part }: ToolPart): ToolPart {
  const { metadata: _, originalInput: __, ...names } = part;
  if (state.case === "completed") {
    const value = { ...state.value, input: {}, output: "", title: "", metadata: {}, attachments: [] };
    return { ...names, state: { case: "completed", value } };
  }
  if (state.case === "error") {
    const { metadata: _, ...value } = state.value;
    return { ...names, state: { case: "error", value: { ...value, input: {}, error: "" } } };
  }
  throw new Error(`call ${part.callId} is ${state.case ?? "nothing"}: it cannot have ended`);
}

/** The part as it is told once its input was: a large input is left out. */
export function withoutLargeInput(given: ToolPart): ToolPart {
  if (!isLarge(given.state.value?.input) && !isLarge(given.originalInput)) return given;
  const { originalInput: _, ...part } = given;
  const { state } = part;
  switch (state.case) {
    case "running":
      return { ...part, inputElided: true, state: { case: "running", value: { ...state.value, input: {} } } };
    case "completed":
      return { ...part, inputElided: true, state: { case: "completed", value: { ...state.value, input: {} } } };
    case "error":
      return { ...part, inputElided: true, state: { case: "error", value: { ...state.value, input: {} } } };
    default:
      return part;
  }
}

const elidedFrom = 16 * 1024;

/** Whether a value is over the limit as JSON. Most are so far below that a rough count, done for every event, is enough. */
function isLarge(input: JsonObject | undefined): boolean {
  if (input === undefined || roughSize(input) * 6 <= elidedFrom) return false;
  return Buffer.byteLength(JSON.stringify(input)) > elidedFrom;
}

/** A sixth of the JSON's length at least: no character takes more than six bytes there. */
function roughSize(value: JsonValue): number {
  if (typeof value === "string") return value.length + 2;
  if (typeof value !== "object" || value === null) return 24;
  let size = 2;
  for (const [key, item] of Object.entries(value)) size += key.length + 4 + roughSize(item);
  return size;
}
