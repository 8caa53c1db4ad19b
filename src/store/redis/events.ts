import { create, fromBinary } from "@bufbuild/protobuf";
import { type SessionEvent, SessionEventSchema } from "../../../gen/opencode/tool/v1/event_pb.ts";
import type { PermissionSettled } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import type { PermissionRequest, ToolPart } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { encodeMessage } from "../../core/encode-message.ts";
import { eventTooLarge } from "../refusals.ts";

/** An event as the log keeps it: without what the step adds (number, time) and what the log's name says (session). */
export function encodeEvent(sessionId: string, event: SessionEvent["event"]): Uint8Array {
  const bytes = encodeMessage(SessionEventSchema, create(SessionEventSchema, { event }));
  const size = bytes.byteLength + sessionId.length + addedBytes;
  if (size > maxEventBytes) throw eventTooLarge(sessionId, size, maxEventBytes);
  return bytes;
}

/** The event of a session's log under its number, complete. */
export function decodeEvent(bytes: Uint8Array, sessionId: string, seq: number, time: number): SessionEvent {
  const entry = fromBinary(SessionEventSchema, bytes);
  if (entry.event.case === "part") entry.event.value.revision = BigInt(seq);
  return Object.assign(entry, { seq: BigInt(seq), time, sessionId });
}

/** The part in an event that tells of one. */
export function decodeRedisPart(bytes: Uint8Array): ToolPart {
  const { event } = fromBinary(SessionEventSchema, bytes);
  if (event.case === "part") return event.value;
  throw new Error(`a call's snapshot holds ${event.case ?? "nothing"} where a part should be`);
}

/** The ask in an event that tells of one. */
export function decodeAsked(bytes: Uint8Array): PermissionRequest {
  const { event } = fromBinary(SessionEventSchema, bytes);
  if (event.case === "permissionAsked") return event.value;
  throw new Error(`an ask holds ${event.case ?? "nothing"} where its request should be`);
}

/** How an ask ended, from the event that tells of it. */
export function decodeSettled(bytes: Uint8Array): PermissionSettled {
  const { event } = fromBinary(SessionEventSchema, bytes);
  if (event.case === "permissionSettled") return event.value;
  throw new Error(`an ask holds ${event.case ?? "nothing"} where its settlement should be`);
}

const maxEventBytes = 1024 * 1024;
/** What number, time, session and a part's revision take at most, tags and lengths included. */
const addedBytes = 48;
