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
  const isGemini = providerId.startsWith("google") || modelId.includes("gemini");
  return isGemini ? forGemini(schema) : schema;
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
