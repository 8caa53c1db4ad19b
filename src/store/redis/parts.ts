import { create, toBinary } from "@bufbuild/protobuf";
import { SessionEventSchema } from "../../../gen/opencode/tool/v1/event_pb.ts";
import type { ToolPart } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { encodeEvent } from "./events.ts";
import type { StepBytes } from "./link.ts";

/** A part as its record keeps it, but for the number of its event; and the bytes a step needs to write it. */
export interface WrittenPart {
  part: ToolPart;
  bytes: StepBytes;
}

/** Encodes a call's new snapshot for the step that writes it; a large input is told once, with `pending`. */
export function encodePart(sessionId: string, call: string, given: ToolPart): WrittenPart {
  const part: ToolPart = { ...given, sessionId, permissionIds: [], revision: 0n, inputElided: false };
  const told = part.state.case === "pending" ? part : withoutLargeInput(part);
  const bytes: StepBytes = { [`told ${call}`]: encodeEvent(sessionId, { case: "part", value: told }) };
  if (told !== part) bytes[`whole ${call}`] = encodeWhole(part);
  return { part, bytes };
}

/** Only an ended part can end a call. */
export function checkEnded(part: ToolPart): void {
  if (part.state.case === "completed" || part.state.case === "error") return;
  throw new Error(`call ${part.callId} cannot end as ${part.state.case ?? "nothing"}`);
}

/** What is left of a call after a week: which one it was, and how it ended. */
export function encodeTombstone({ state, ...part }: ToolPart): Uint8Array {
  const { metadata: _, ...names } = part;
  if (state.case === "completed") {
    const value = { ...state.value, input: {}, output: "", title: "", metadata: {}, attachments: [] };
    return encodeWhole({ ...names, state: { case: "completed", value } });
  }
  if (state.case === "error") {
    const { metadata: _, ...value } = state.value;
    return encodeWhole({ ...names, state: { case: "error", value: { ...value, input: {}, error: "" } } });
  }
  throw new Error(`call ${part.callId} is ${state.case ?? "nothing"}: it cannot have ended`);
}

function encodeWhole(part: ToolPart): Uint8Array {
  return toBinary(SessionEventSchema, create(SessionEventSchema, { event: { case: "part", value: part } }));
}

const elidedFrom = 16 * 1024;

function withoutLargeInput(part: ToolPart): ToolPart {
  const { state } = part;
  if (Buffer.byteLength(JSON.stringify(state.value?.input ?? {})) <= elidedFrom) return part;
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
