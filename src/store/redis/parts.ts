import { create } from "@bufbuild/protobuf";
import { SessionEventSchema } from "../../../gen/opencode/tool/v1/event_pb.ts";
import type { ToolPart } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { backgroundEndOf, tombstone, withoutLargeInput } from "../parts.ts";
import { encodeEvent } from "./events.ts";
import type { StepBytes } from "./link.ts";
import { encodeSealed } from "./sealed.ts";

/** A part as its record stores it, without the sequence number of its event; and the bytes that a step needs to write it. */
export interface WrittenRedisPart {
  part: ToolPart;
  bytes: StepBytes;
}

/** Encodes a call's new snapshot for the step that writes it; a large input is emitted only with the pending part. */
export function encodePart(sessionId: string, call: string, given: ToolPart): WrittenRedisPart {
  const part: ToolPart = { ...given, sessionId, permissionIds: [], revision: 0n, inputElided: false };
  const emitted = part.state.case === "pending" ? part : withoutLargeInput(part);
  const bytes: StepBytes = { [`event ${call}`]: encodeEvent(sessionId, { case: "part", value: emitted }) };
  if (emitted !== part) bytes[`snapshot ${call}`] = encodeWhole(part);
  const end = backgroundEndOf(part);
  if (end) bytes[`background ${call}`] = encodeEvent(sessionId, end);
  return { part, bytes };
}

/** Encodes the tombstone of an ended call. */
export function encodeTombstone(part: ToolPart): Uint8Array {
  return encodeWhole(tombstone(part));
}

function encodeWhole(part: ToolPart): Uint8Array {
  return encodeSealed(SessionEventSchema, create(SessionEventSchema, { event: { case: "part", value: part } }));
}
