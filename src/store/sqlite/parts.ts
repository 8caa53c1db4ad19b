import { create, type JsonObject, type JsonValue, toBinary } from "@bufbuild/protobuf";
import { SessionEventSchema } from "../../../gen/opencode/tool/v1/event_pb.ts";
import type { ToolPart } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import type { Step } from "./commit.ts";
import type { Log } from "./log.ts";

/** A part as its record keeps it: with its whole input, the number of its event, and the bytes of both. */
export interface WrittenPart {
  part: ToolPart;
  snapshot: Uint8Array;
}

/** Appends a call's new snapshot to the log of its session; a large input is told once, with `pending`. */
export function writePart(step: Step, log: Log, sessionId: string, given: ToolPart): WrittenPart {
  const revision = BigInt(log.nextSeq(sessionId));
  const part: ToolPart = { ...given, sessionId, permissionIds: [], revision, inputElided: false };
  const told = part.state.case === "pending" ? part : withoutLargeInput(part);
  const bytes = log.append(step, sessionId, { case: "part", value: told });
  if (told === part) return { part, snapshot: bytes };
  const whole = create(SessionEventSchema, { event: { case: "part", value: part } });
  return { part, snapshot: toBinary(SessionEventSchema, whole) };
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

function withoutLargeInput(part: ToolPart): ToolPart {
  const { state } = part;
  if (!isLarge(state.value?.input)) return part;
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
