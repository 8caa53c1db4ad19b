import type { JsonObject, JsonValue } from "@bufbuild/protobuf";

/** A JSON Schema, as agents send it to their model. */
interface Schema {
  readonly type?: unknown;
  readonly properties?: Readonly<Record<string, Schema>>;
  readonly required?: readonly string[];
  readonly items?: Schema;
  readonly enum?: readonly JsonValue[];
  readonly const?: JsonValue;
  readonly anyOf?: readonly Schema[];
  readonly minItems?: number;
}

/**
 * Creates a harmless input that fits a tool's schema: commands and files leave a mark in the canary's directory, addresses lead
 * nowhere.
 */
export function sampleInput(schema: unknown, directory: string): JsonObject {
  const sample = sampleOf("input", isSchema(schema) ? schema : {}, directory);
  return typeof sample === "object" && sample !== null && !Array.isArray(sample) ? sample : {};
}

function sampleOf(name: string, schema: Schema, directory: string): JsonValue {
  if (schema.const !== undefined) return schema.const;
  const [first] = schema.enum ?? [];
  if (first !== undefined) return first;
  const [option] = schema.anyOf ?? [];
  if (option !== undefined) return sampleOf(name, option, directory);
  const type = Array.isArray(schema.type) ? schema.type[0] : schema.type;
  if (type === "number" || type === "integer") return 1;
  if (type === "boolean") return false;
  if (type === "array") {
    const count = Math.max(schema.minItems ?? 1, 1);
    return Array.from({ length: count }, () => sampleOf(name, schema.items ?? { type: "string" }, directory));
  }
  if (type !== "object" && schema.properties === undefined) return textFor(name, directory);
  const { properties = {}, required = [] } = schema;
  return Object.fromEntries(required.map((key) => [key, sampleOf(key, properties[key] ?? {}, directory)]));
}

/** Returns a text for a property by its name, which is all that shows what the tool does with it. */
function textFor(name: string, directory: string): string {
  if (/command|cmd|script/i.test(name)) return `touch '${markerOf(directory)}'`;
  if (/path|file/i.test(name)) return markerOf(directory);
  if (/url|uri/i.test(name)) return "http://127.0.0.1:9/canary";
  if (/new_?string/i.test(name)) return "canary 2";
  return "canary";
}

/** Returns the file that a tool leaves if it runs. */
export function markerOf(directory: string): string {
  return `${directory}/canary-marker.txt`;
}

function isSchema(value: unknown): value is Schema {
  return typeof value === "object" && value !== null;
}
