import {
  type DescField,
  type DescMessage,
  fromJson,
  type JsonObject,
  type JsonValue,
  type MessageShape,
} from "@bufbuild/protobuf";
import { keyOf } from "../../../src/view/json-form/convert.ts";

const opencodeNames: Readonly<Record<string, string>> = {
  part: "message.part.updated",
  permission_asked: "permission.updated",
  permission_settled: "permission.replied",
};

/** Returns the `type` of an event in the JSON form: opencode's name, or that of the contract if opencode has no such event. */
export const eventType = (name: string): string => opencodeNames[name] ?? name;

/** Reads a message in the JSON form, so that a test shows that the form has all of it. Ignores unknown keys; throws on invalid values. */
export function fromJsonForm<D extends DescMessage>(schema: D, form: JsonObject): MessageShape<D> {
  return fromJson(schema, fromForm(schema, form));
}

function fromForm(message: DescMessage, form: JsonObject): JsonObject {
  const json: JsonObject = {};
  for (const field of message.fields) {
    const value = message.name === "ToolState" ? armOfState(field, form) : valueIn(field, form);
    if (value === undefined) continue;
    json[field.jsonName] = Array.isArray(value) ? value.map((one) => readValue(field, one)) : readValue(field, value);
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
  const { status } = objectOf(state);
  if (status === name) return state;
  const known = oneof?.fields.map((arm) => arm.name) ?? [];
  if (known.some((arm) => arm === status)) return undefined;
  throw new Error(`status is ${JSON.stringify(status)}; it must be one of ${known.join(", ")}`);
}

function eventContent(name: string, properties: JsonValue | undefined): JsonValue | undefined {
  return name === "part" ? objectOf(properties).part : properties;
}

function readValue(field: DescField, value: JsonValue): JsonValue {
  // JSON of tools, callers and models is as it was.
  if (field.message)
    return field.message.file.name.startsWith("google/protobuf/") ? value : fromForm(field.message, objectOf(value));
  if (field.enum) return field.enum.values.find(({ localName }) => localName.toLowerCase() === value)?.name ?? value;
  return value;
}

function objectOf(value: JsonValue | undefined): JsonObject {
  if (typeof value === "object" && value !== null && !Array.isArray(value)) return value;
  throw new Error(`${JSON.stringify(value)} is not an object`);
}
