import type { JsonObject, JsonValue } from "@bufbuild/protobuf";
import type { Tool } from "./tool.ts";

/** A model as callers name it; empty strings if they do not. */
export interface Model {
  providerId: string;
  modelId: string;
}

/** Selects the tools that suit a model: those for its provider, and of those that change files the form it was trained on. */
export function offeredTo({ providerId, modelId }: Model, tools: readonly Tool[]): Tool[] {
  const hasPatch = tools.some(({ changeForm }) => changeForm === "patch");
  const unfit = prefersPatches(modelId) && hasPatch ? "replace" : "patch";
  return tools.filter(
    ({ changeForm, providers }) =>
      changeForm !== unfit && (providers === undefined || providerId === "" || providers.includes(providerId)),
  );
}

/** Reports whether models of this family write patches better than they call `edit`. */
function prefersPatches(modelId: string): boolean {
  return modelId.includes("gpt-") && !modelId.includes("oss") && !modelId.includes("gpt-4");
}

/** Converts an input schema to the dialect of a model's provider. All quirks of providers are handled here. */
export function schemaFor({ providerId, modelId }: Model, schema: JsonObject): JsonObject {
  if (providerId.startsWith("google") || modelId.includes("gemini")) return forGemini(schema);
  if (["openai", "azure"].includes(providerId)) return forOpenAi(schema) ?? schema;
  return schema;
}

/** Keywords of a schema that OpenAI's strict mode takes as they are. */
const strictKeywords = new Set([
  ...["type", "description", "title", "enum", "const", "pattern", "format", "multipleOf", "minimum", "maximum"],
  ...["exclusiveMinimum", "exclusiveMaximum", "minItems", "maxItems", "$ref"],
]);
/** Keywords without which a schema would mean something else. */
const strictless = ["allOf", "not", "if", "prefixItems", "patternProperties", "dependentRequired", "dependentSchemas"];

/**
 * Converts a schema to the form of OpenAI's strict mode: objects are closed, every field is required, and one that was optional takes
 * null, which the tool reads as absent. Limits that the mode does not know are left out, and still checked. Undefined if the schema
 * has what strict mode cannot say, such as an object with any keys.
 */
function forOpenAi(schema: JsonObject): JsonObject | undefined {
  const isObjectSchema = schema.type === "object" && schema.anyOf === undefined && schema.oneOf === undefined;
  return isObjectSchema ? strict(schema) : undefined;
}

function strict(schema: JsonObject): JsonObject | undefined {
  if (strictless.some((keyword) => schema[keyword] !== undefined)) return undefined;
  const result: JsonObject = Object.fromEntries(Object.entries(schema).filter(([key]) => strictKeywords.has(key)));
  const members = schema.anyOf ?? schema.oneOf;
  if (Array.isArray(members)) {
    const strictMembers = members.map((member) => (isObject(member) ? strict(member) : undefined));
    if (strictMembers.some((member) => member === undefined)) return undefined;
    result.anyOf = strictMembers.filter((member) => member !== undefined);
  } else if (!["type", "enum", "const", "$ref"].some((keyword) => schema[keyword] !== undefined)) return undefined;
  if (isObject(schema.$defs)) {
    const defs = strictFields(schema.$defs, () => false);
    if (defs === undefined) return undefined;
    result.$defs = defs;
  }
  if (schema.type === "array") {
    const items = isObject(schema.items) ? strict(schema.items) : undefined;
    if (items === undefined) return undefined;
    result.items = items;
  }
  if (schema.type !== "object") return result;
  const { properties = {}, required = [], additionalProperties = false } = schema;
  const isClosed = additionalProperties === false && isObject(properties);
  const fields = isClosed && strictFields(properties, (name) => !(Array.isArray(required) && required.includes(name)));
  if (!fields) return undefined;
  return { ...result, properties: fields, required: Object.keys(fields), additionalProperties: false };
}

/** Converts the fields of an object; undefined if one of them cannot be converted. */
function strictFields(fields: JsonObject, isOptional: (name: string) => boolean): JsonObject | undefined {
  const result: JsonObject = {};
  for (const [name, field] of Object.entries(fields)) {
    const converted = isObject(field) ? strict(field) : undefined;
    if (converted === undefined || !isObject(field)) return undefined;
    result[name] = isOptional(name) ? orNull(withDefault(converted, field.default)) : converted;
  }
  return result;
}

function orNull(schema: JsonObject): JsonObject {
  const { type, enum: allowed, description, ...rest } = schema;
  const about = description === undefined ? {} : { description };
  const isPlain = typeof type === "string" && rest.const === undefined && type !== "object";
  if (!isPlain) {
    const { description: _, ...bare } = schema;
    return { ...about, anyOf: [bare, { type: "null" }] };
  }
  return { ...rest, ...about, type: [type, "null"], ...(Array.isArray(allowed) && { enum: [...allowed, null] }) };
}

function withDefault(schema: JsonObject, value: JsonValue | undefined): JsonObject {
  if (value === undefined) return schema;
  const words = `Default: ${JSON.stringify(value)}.`;
  return { ...schema, description: typeof schema.description === "string" ? `${schema.description}. ${words}` : words };
}

/** Removes what Gemini refuses: enums of numbers, arrays without items, required names without a property, fields of another type. */
function forGemini(schema: JsonObject): JsonObject {
  const { enum: allowed, ...rest } = mapSchemas(schema, forGemini);
  const { type, items, properties, required } = rest;
  const isNumber = type === "integer" || type === "number";
  const result: JsonObject = allowed === undefined || isNumber ? rest : { ...rest, enum: allowed };
  if (isNumber && Array.isArray(allowed)) {
    const words = `One of ${allowed.map(String).join(", ")}.`;
    result.description = typeof rest.description === "string" ? `${rest.description} ${words}` : words;
  }
  if (type === "array" && (!isObject(items) || Object.keys(items).length === 0)) result.items = { type: "string" };
  if (type === "object" && isObject(properties) && Array.isArray(required)) {
    result.required = required.filter((name) => typeof name === "string" && Object.hasOwn(properties, name));
  }
  if (typeof type === "string" && type !== "object") {
    delete result.properties;
    delete result.required;
  }
  return result;
}

const one = ["items", "additionalProperties", "not", "contains"];
const lists = ["anyOf", "oneOf", "allOf", "prefixItems"];
const tables = ["properties", "$defs", "definitions", "patternProperties"];

/** Maps each schema directly inside a schema. */
function mapSchemas(schema: JsonObject, change: (schema: JsonObject) => JsonObject): JsonObject {
  const changed = (value: JsonValue) => (isObject(value) ? change(value) : value);
  return mapValues(schema, (value, key) => {
    if (one.includes(key)) return changed(value);
    if (lists.includes(key) && Array.isArray(value)) return value.map(changed);
    if (tables.includes(key) && isObject(value)) return mapValues(value, changed);
    return value;
  });
}

function mapValues(object: JsonObject, change: (value: JsonValue, key: string) => JsonValue): JsonObject {
  return Object.fromEntries(Object.entries(object).map(([key, value]) => [key, change(value, key)]));
}

function isObject(value: JsonValue | undefined): value is JsonObject {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
