import {
  type DescField,
  type DescMessage,
  type JsonObject,
  type JsonValue,
  type MessageShape,
  ScalarType,
  toJson,
} from "@bufbuild/protobuf";

/**
 * Writes a message in the JSON form, which opencode's clients read. It has the content of proto JSON with these differences:
 * keys end in `ID` (`sessionID`), enum values are bare words (`once`), 64-bit numbers are numbers, `status` discriminates a
 * call's `state`, `type` and `properties` of an event are those of opencode where it has the event, and fields that the contract does not mark
 * `optional` are always present.
 */
export function toJsonForm<D extends DescMessage>(schema: D, message: MessageShape<D>): JsonObject {
  return toForm(schema, objectOf(toJson(schema, message, { alwaysEmitImplicit: true }), schema.name));
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
    else if (field.oneof?.name === "event") {
      form.type = eventType(field.name);
      form.properties = eventProperties(field.name, objectOf(written, field.name), form);
    } else form[keyOf(field)] = written;
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

/** opencode's names of the events that it has too; the others keep the names of the contract. */
const opencodeNames: Readonly<Record<string, string>> = {
  part: "message.part.updated",
  permission_asked: "permission.updated",
  permission_settled: "permission.replied",
};

/** The `type` of an event in the JSON form. */
export const eventType = (name: string): string => opencodeNames[name] ?? name;

/**
 * The `properties` of an event. Those of opencode's events have its fields, in the spelling of each of its clients, next to the
 * fields of the contract.
 */
function eventProperties(name: string, content: JsonObject, entry: JsonObject): JsonObject {
  const { sessionID = "", time = 0 } = entry;
  if (name === "part") return { sessionID, part: content, time };
  if (name === "permission_asked") return { ...content, ...permissionOf(content) };
  if (name === "permission_settled") {
    const reply = replyOf(content.outcome);
    return { ...content, requestID: content.permissionID ?? "", reply, response: reply };
  }
  return content;
}

/** The fields of a request that earlier clients of opencode read. */
function permissionOf({ permission = "", patterns = [], tool, created = 0 }: JsonObject): JsonObject {
  const { messageID = "", callID = "" } = typeof tool === "object" && tool !== null && !Array.isArray(tool) ? tool : {};
  const title = `${String(permission)} ${Array.isArray(patterns) ? patterns.join(", ") : ""}`.trimEnd();
  return { type: permission, pattern: patterns, messageID, callID, title, time: { created } };
}

/** The reply that opencode has for an outcome: what is not approved is rejected. */
function replyOf(outcome: JsonValue | undefined): "once" | "always" | "reject" {
  if (outcome === "always") return "always";
  return outcome === "once" || outcome === "edited" ? "once" : "reject";
}
