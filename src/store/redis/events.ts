import { create, fromBinary } from "@bufbuild/protobuf";
import { type SessionEvent, SessionEventSchema } from "../../../gen/opencode/tool/v1/event_pb.ts";
import type { PermissionSettled } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import type { PermissionRequest, ToolPart } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { encodeMessage } from "../../core/encode-message.ts";
import { eventTooLarge } from "../refusals.ts";

/** Encodes an event as the log stores it: without the sequence number and time, which the step adds, and the session, which the log's key names. */
export function encodeEvent(sessionId: string, event: SessionEvent["event"]): Uint8Array {
  const bytes = encodeMessage(SessionEventSchema, create(SessionEventSchema, { event }));
  const size = bytes.byteLength + sessionId.length + addedBytes;
  if (size > maxEventBytes) throw eventTooLarge(sessionId, size, maxEventBytes);
  return bytes;
}

/** Decodes an event of a session's log and adds the omitted fields. */
export function decodeEvent(bytes: Uint8Array, sessionId: string, seq: number, time: number): SessionEvent {
  const entry = fromBinary(SessionEventSchema, bytes);
  if (entry.event.case === "part") entry.event.value.revision = BigInt(seq);
  return Object.assign(entry, { seq: BigInt(seq), time, sessionId });
}

/** Decodes the part in an event. */
export function decodeRedisPart(bytes: Uint8Array): ToolPart {
  const { event } = fromBinary(SessionEventSchema, bytes);
  if (event.case === "part") return event.value;
  throw new Error(`a call's snapshot holds ${event.case ?? "nothing"} where a part should be`);
}

/** Decodes the permission request in an event. */
export function decodeAsked(bytes: Uint8Array): PermissionRequest {
  const { event } = fromBinary(SessionEventSchema, bytes);
  if (event.case === "permissionAsked") return event.value;
  throw new Error(`an ask holds ${event.case ?? "nothing"} where its request should be`);
}

/** Decodes the settlement in an event. */
export function decodeSettled(bytes: Uint8Array): PermissionSettled {
  const { event } = fromBinary(SessionEventSchema, bytes);
  if (event.case === "permissionSettled") return event.value;
  throw new Error(`an ask holds ${event.case ?? "nothing"} where its settlement should be`);
}

const maxEventBytes = 1024 * 1024;
/** Maximum size of the fields added later: sequence number, time, session and a part's revision, with tags and lengths. */
const addedBytes = 48;
