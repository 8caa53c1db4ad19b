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
 * nowhere, and servers are our MCP server.
 */
export function sampleInput(
  schema: unknown,
  { directory, mcpName }: { directory: string; mcpName: string },
): JsonObject {
  const known = isSchema(schema) ? schema : {};
  const file = "content" in (known.properties ?? {}) ? markerIn(directory) : existingFileIn(directory);
  const sample = sampleOf("input", known, { directory, file, mcpName });
  return typeof sample === "object" && sample !== null && !Array.isArray(sample) ? sample : {};
}

function sampleOf(name: string, schema: Schema, place: Place): JsonValue {
  if (schema.const !== undefined) return schema.const;
  const [first] = schema.enum ?? [];
  if (first !== undefined) return first;
  const [option] = schema.anyOf ?? [];
  if (option !== undefined) return sampleOf(name, option, place);
  const type = Array.isArray(schema.type) ? schema.type[0] : schema.type;
  if (type === "number" || type === "integer") return 1;
  if (type === "boolean") return false;
  if (type === "array") {
    const count = Math.max(schema.minItems ?? 1, 1);
    return Array.from({ length: count }, () => sampleOf(name, schema.items ?? { type: "string" }, place));
  }
  if (type !== "object" && schema.properties === undefined) return textFor(name, place);
  const { properties = {}, required = [] } = schema;
  return Object.fromEntries(required.map((key) => [key, sampleOf(key, properties[key] ?? {}, place)]));
}

/** Places that the inputs name. */
interface Place {
  readonly directory: string;
  readonly file: string;
  readonly mcpName: string;
}

/** Returns a text for a property by its name, which is all that shows what the tool does with it. */
function textFor(name: string, { directory, file, mcpName }: Place): string {
  if (/^server$/i.test(name)) return mcpName;
  if (/command|cmd|^script/i.test(name)) return `touch '${markerIn(directory)}'`;
  if (/path|file/i.test(name)) return file;
  if (/url|uri/i.test(name)) return "https://canary.invalid/";
  if (/new_?string/i.test(name)) return "canary 2";
  return "canary";
}

/** Returns the file in the canary's directory that a tool leaves if it runs. */
export function markerIn(directory: string): string {
  return `${directory}/canary-marker.txt`;
}

/** Returns the file in the canary's directory that is there from the start, with the text "canary". */
export function existingFileIn(directory: string): string {
  return `${directory}/canary.txt`;
}

/** Checks if a tool replaces a text by another one. */
export function changesText(schema: unknown): boolean {
  return Object.keys((isSchema(schema) && schema.properties) || {}).some((name) => /^old_?string$/i.test(name));
}

function isSchema(value: unknown): value is Schema {
  return typeof value === "object" && value !== null;
}
