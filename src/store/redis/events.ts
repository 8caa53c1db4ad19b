import { create } from "@bufbuild/protobuf";
import { type SessionEvent, SessionEventSchema } from "../../../gen/opencode/tool/v1/event_pb.ts";
import type { PermissionSettled } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import type { PermissionRequest, ToolPart } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { DamagedRecord } from "../checksum.ts";
import { eventTooLarge } from "../refusals.ts";
import { decodeSealed, encodeSealed, sealBytes } from "./sealed.ts";

/** Encodes an event as the log stores it: without the sequence number and time, which the step adds, and the session, which the log's key names. */
export function encodeEvent(sessionId: string, event: SessionEvent["event"]): Uint8Array {
  const bytes = encodeSealed(SessionEventSchema, create(SessionEventSchema, { event }));
  const size = bytes.byteLength - sealBytes + sessionId.length + addedBytes;
  if (size > maxEventBytes) throw eventTooLarge(sessionId, size, maxEventBytes);
  return bytes;
}

/** Decodes an event of a session's log and adds the omitted fields. */
export function decodeEvent(bytes: Uint8Array, sessionId: string, seq: number, time: number): SessionEvent {
  const entry = decodeSealed(SessionEventSchema, bytes, `event ${seq} of session ${sessionId}`);
  if (entry.event.case === "part") entry.event.value.revision = BigInt(seq);
  return Object.assign(entry, { seq: BigInt(seq), time, sessionId });
}

/** Decodes the part in an event. */
export function decodeRedisPart(bytes: Uint8Array): ToolPart {
  return eventIn(bytes, "part", "the part of a call");
}

/** Decodes the permission request in an event. */
export function decodeAsked(bytes: Uint8Array): PermissionRequest {
  return eventIn(bytes, "permissionAsked", "a permission request");
}

/** Decodes the settlement in an event. */
export function decodeSettled(bytes: Uint8Array): PermissionSettled {
  return eventIn(bytes, "permissionSettled", "a settlement");
}

/** Decodes an event and returns what is in it, by the kind of event. */
function eventIn<Case extends EventCase>(bytes: Uint8Array, wanted: Case, what: string): EventOf<Case> {
  const { event } = decodeSealed(SessionEventSchema, bytes, what);
  if (event.case === wanted) return event.value as EventOf<Case>;
  throw new DamagedRecord(`${what} is an event of another kind: ${event.case ?? "none"}`);
}

type EventCase = NonNullable<SessionEvent["event"]["case"]>;
type EventOf<Case extends EventCase> = Extract<SessionEvent["event"], { case: Case }>["value"];

const maxEventBytes = 1024 * 1024;
/** Maximum size of the fields added later: sequence number, time, session and a part's revision, with tags and lengths. */
const addedBytes = 48;
