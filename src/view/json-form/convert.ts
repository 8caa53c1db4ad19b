import {
  type DescField,
  type DescMessage,
  fromJson,
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
 * `optional` are always present. `fromJsonForm` is the inverse.
 */
export function toJsonForm<D extends DescMessage>(schema: D, message: MessageShape<D>): JsonObject {
  return toForm(schema, objectOf(toJson(schema, message, { alwaysEmitImplicit: true }), schema.name));
}

/** Reads a message in the JSON form. Ignores unknown keys; throws on invalid values. */
export function fromJsonForm<D extends DescMessage>(schema: D, form: JsonObject): MessageShape<D> {
  return fromJson(schema, fromForm(schema, form));
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
    const written = each(field, value, writtenValue);
    if (message.name === "ToolState") return objectOf(written, field.name);
    if (field.oneof?.name === "state") form.state = written;
    else if (field.oneof?.name === "event") {
      form.type = eventType(field.name);
      form.properties = eventProperties(field.name, objectOf(written, field.name), form);
    } else form[keyOf(field)] = written;
  }
  return form;
}

function fromForm(message: DescMessage, form: JsonObject): JsonObject {
  const json: JsonObject = {};
  for (const field of message.fields) {
    const value = message.name === "ToolState" ? armOfState(field, form) : valueIn(field, form);
    if (value !== undefined) json[field.jsonName] = each(field, value, readValue);
  }
  return json;
}

/** The object of the form that holds the value of a field. */
function valueIn(field: DescField, form: JsonObject): JsonValue | undefined {
  if (field.oneof?.name === "state") return armOfState(field, form.state);
  if (field.oneof?.name === "event")
    return form.type === eventType(field.name) ? eventContent(field.name, form.properties) : undefined;
  return form[keyOf(field)];
}

function armOfState({ name, oneof }: DescField, state: JsonValue | undefined): JsonValue | undefined {
  if (state === undefined) return undefined;
  const { status } = objectOf(state, "state");
  if (status === name) return state;
  const known = oneof?.fields.map((arm) => arm.name) ?? [];
  if (known.some((arm) => arm === status)) return undefined;
  throw new Error(`status is ${JSON.stringify(status)}; it must be one of ${known.join(", ")}`);
}

function writtenValue(field: DescField, value: JsonValue): JsonValue {
  if (field.message) return isJson(field) ? value : toForm(field.message, objectOf(value, field.name));
  // A value of a newer contract stays a number, as on the wire.
  if (field.enum) return field.enum.values.find(({ name }) => name === value)?.localName.toLowerCase() ?? value;
  return field.scalar === ScalarType.UINT64 ? Number(value) : value;
}

function readValue(field: DescField, value: JsonValue): JsonValue {
  if (field.message) return isJson(field) ? value : fromForm(field.message, objectOf(value, field.name));
  if (field.enum) return field.enum.values.find(({ localName }) => localName.toLowerCase() === value)?.name ?? value;
  return value;
}

/** Converts a value, or each value of a repeated field. */
function each(field: DescField, value: JsonValue, convert: (field: DescField, value: JsonValue) => JsonValue) {
  if (field.fieldKind !== "list") return convert(field, value);
  if (Array.isArray(value)) return value.map((one) => convert(field, one));
  throw new Error(`${keyOf(field)} must be a list`);
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

/** The content of an event from its `properties`. */
function eventContent(name: string, properties: JsonValue | undefined): JsonValue | undefined {
  if (name !== "part" || typeof properties !== "object" || properties === null || Array.isArray(properties))
    return properties;
  return properties.part;
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
