import { crc32 } from "node:zlib";
import { create, type DescMessage, fromBinary, type Message, type MessageShape, toBinary } from "@bufbuild/protobuf";
import { type SessionEvent, SessionEventSchema } from "../../../gen/opencode/tool/v1/event_pb.ts";
import type { PermissionSettled } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import type { PermissionRequest, ToolPart } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { backgroundEndOf, DamagedRecord, tombstone, unsealed, withoutLargeInput } from "../parts.ts";
import { eventTooLarge } from "../refusals.ts";
import type { StepBytes } from "./link.ts";

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

/** Encodes a request with its votes; only that of its opening is an event of the log. */
export function encodeAsked(value: PermissionRequest): Uint8Array {
  return encodeSealed(SessionEventSchema, create(SessionEventSchema, { event: { case: "permissionAsked", value } }));
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

/**
 * Encodes a message with its checksum behind it, as Redis stores it. The checksum has the form of a field that no message has, so
 * replicas of versions without checksums skip it.
 */
export function encodeSealed(schema: DescMessage, message: Message): Uint8Array {
  const content = toBinary(schema, message);
  const end = content.byteLength;
  const bytes = Buffer.allocUnsafe(end + sealBytes);
  bytes.set(content);
  bytes[end] = sealTag[0];
  bytes[end + 1] = sealTag[1];
  bytes.writeUInt32LE(crc32(content), end + sealTag.length);
  return bytes;
}

/** Decodes a stored message if it has its checksum; versions before checksums stored none. */
export function decodeSealed<Schema extends DescMessage>(
  schema: Schema,
  bytes: Uint8Array,
  what: string,
): MessageShape<Schema> {
  const content = contentOf(bytes, what);
  try {
    const message = fromBinary(schema, content);
    // The tag of the checksum may be what was damaged.
    if (content === bytes && message.$unknown !== undefined) throw new DamagedRecord(`${what} is not what was written`);
    return message;
  } catch (cause) {
    throw cause instanceof DamagedRecord ? cause : new DamagedRecord(`${what} cannot be decoded`, { cause });
  }
}

/** Returns a message without its checksum. */
function contentOf(bytes: Uint8Array, what: string): Uint8Array {
  const end = bytes.byteLength - sealBytes;
  if (end < 0 || bytes[end] !== sealTag[0] || bytes[end + 1] !== sealTag[1]) return bytes;
  const crc = Buffer.from(bytes.buffer, bytes.byteOffset + end, sealBytes).readUInt32LE(sealTag.length);
  return unsealed(bytes.subarray(0, end), crc, what);
}

/** Encodes a JSON object with its checksum as the last property, which versions without checksums ignore. */
export function encodeSealedJson(value: object): string {
  const json = JSON.stringify(value);
  return `${json.slice(0, -1)}${jsonSeal}${crc32(json)}}`;
}

/** Parses a stored JSON object if it has its checksum; versions before checksums stored none. */
export function decodeSealedJson(stored: string, what: string): unknown {
  const end = stored.lastIndexOf(jsonSeal);
  const crc = Number(stored.slice(end + jsonSeal.length, -1));
  const json = end < 0 || Number.isNaN(crc) ? stored : unsealed(`${stored.slice(0, end)}}`, crc, what);
  try {
    return JSON.parse(json);
  } catch (cause) {
    throw new DamagedRecord(`${what} cannot be decoded`, { cause });
  }
}

const jsonSeal = ',"crc":';

/** Tag of field 2047, the last one of two bytes, with four bytes as its value. */
const sealTag = [0xfd, 0x7f] as const;
/** Bytes that a checksum adds to a message. */
const sealBytes = sealTag.length + 4;

/**
 * Encodes a call's new snapshot for the step that writes it; a large input is emitted only with the pending part. Returns the part
 * as its record stores it, without the sequence number of its event, and the bytes that the step needs.
 */
export function encodePart(sessionId: string, call: string, given: ToolPart) {
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
