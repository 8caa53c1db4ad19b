import {
  type DescField,
  type DescMessage,
  isMessage,
  type JsonObject,
  type JsonValue,
  type MessageShape,
  ScalarType,
  toJson,
} from "@bufbuild/protobuf";
import { type SessionEvent, SessionEventSchema } from "../../../gen/opencode/tool/v1/event_pb.ts";
import { PermissionOutcome, type PermissionSettled } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import type { PermissionRequest } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { isApproval } from "../outcomes.ts";

/**
 * Writes a message in the JSON form, which opencode's clients read. It has the content of proto JSON with these differences:
 * keys end in `ID` (`sessionID`), enum values are bare words (`once`), 64-bit numbers are numbers, `status` discriminates a
 * call's `state`, `type` and `properties` of an event are those of opencode where it has the event, and fields that the contract does not mark
 * `optional` are always present.
 */
export function toJsonForm<D extends DescMessage>(schema: D, message: MessageShape<D>): JsonObject {
  const form = toForm(schema, objectOf(toJson(schema, message, { alwaysEmitImplicit: true }), schema.name));
  return isMessage(message, SessionEventSchema) ? { ...form, ...opencodeForm(message, form) } : form;
}

/** The key of a field in the JSON form. */
export function keyOf({ jsonName }: DescField): string {
  return jsonName.replace(/Id(s?)$/, "ID$1");
}

function toForm(message: DescMessage, json: JsonObject): JsonObject {
  const form: JsonObject = {};
  for (const field of message.fields) {
    const given = json[field.jsonName];
    const value = given === undefined && isAlwaysThere(field) ? {} : given;
    if (value === undefined) continue;
    const written = writtenField(field, value);
    if (message.name === "ToolState") return objectOf(written, field.name);
    if (field.oneof?.name === "state") form.state = written;
    else if (field.oneof?.name === "event") Object.assign(form, { type: field.name, properties: written });
    else form[keyOf(field)] = written;
  }
  return form;
}

function writtenValue(field: DescField, value: JsonValue): JsonValue {
  if (field.message) return isJson(field) ? value : toForm(field.message, objectOf(value, field.name));
  // A value of a newer contract stays a number, as on the wire.
  if (field.enum) return field.enum.values.find(({ name }) => name === value)?.localName.toLowerCase() ?? value;
  return field.scalar === ScalarType.UINT64 ? Number(value) : value;
}

/** Converts a value, or each value of a repeated field. */
function writtenField(field: DescField, value: JsonValue): JsonValue {
  return field.fieldKind === "list" && Array.isArray(value)
    ? value.map((one) => writtenValue(field, one))
    : writtenValue(field, value);
}

/** Passes JSON of tools, callers and models through unchanged. */
function isJson(field: DescField): boolean {
  return isStruct(field) || field.message?.typeName === "google.protobuf.Value";
}

function isStruct({ message }: DescField): boolean {
  return message?.typeName === "google.protobuf.Struct";
}

function isAlwaysThere(field: DescField): boolean {
  return isStruct(field) && !field.proto.proto3Optional;
}

function objectOf(value: JsonValue | undefined, name: string): JsonObject {
  if (typeof value === "object" && value !== null && !Array.isArray(value)) return value;
  throw new Error(`${name} must be an object`);
}

/** Type and properties of an event that opencode has too: its fields are next to those of the contract. */
function opencodeForm({ event, sessionId, time }: SessionEvent, { properties = {} }: JsonObject): JsonObject {
  const withContract = (own: { type: string; properties: JsonObject }) => ({
    ...own,
    properties: { ...objectOf(properties, own.type), ...own.properties },
  });
  if (event.case === "part") return partUpdated(sessionId, properties, time);
  if (event.case === "permissionAsked") return withContract(permissionUpdated(event.value));
  return event.case === "permissionSettled" ? withContract(permissionReplied(event.value)) : {};
}

/** Returns opencode's event of a part that has changed. */
export function partUpdated<T>(sessionID: string, part: T, time: number) {
  return { type: "message.part.updated", properties: { sessionID, part, time } };
}

/** Returns the event of a request for clients of opencode's first API, with the fields that only they read. */
export function permissionUpdated({ permission, patterns, display, tool, created }: PermissionRequest) {
  const { messageId: messageID = "", callId: callID = "" } = tool ?? {};
  const title = display.join("\n") || `${permission} ${patterns.join(", ")}`.trimEnd();
  const properties = { type: permission, pattern: patterns, messageID, callID, title, time: { created } };
  return { type: "permission.updated", properties };
}

/** Returns opencode's event of a settlement in the spelling of each of its clients: what is not approved is rejected. */
export function permissionReplied({ permissionId: requestID, sessionId: sessionID, outcome }: PermissionSettled) {
  const approved = outcome === PermissionOutcome.ALWAYS ? "always" : "once";
  const reply = isApproval(outcome) ? approved : "reject";
  const properties = { sessionID, requestID, permissionID: requestID, reply, response: reply };
  return { type: "permission.replied", properties };
}
