import type { JsonObject, JsonValue } from "@bufbuild/protobuf";

/**
 * Replaces strings that are exactly a decimal number, `true` or `false` by that value, where the JSON Schema wants a number or a
 * boolean and allows no string: models write numbers as strings. Leaves out a null in an optional field that allows none: OpenAI's
 * strict schemas have no other way to leave it out. Everything else stays as it is.
 */
export function coerceScalars(value: JsonValue, schema: JsonObject): JsonValue {
  return coerced(value, schema, { root: schema, steps: maxSteps });
}

/** A walk through a schema. A schema that takes too many steps is not followed further, and what it would allow is unknown. */
interface Walk {
  readonly root: JsonObject;
  steps: number;
}

function coerced(value: JsonValue, schema: JsonValue | undefined, walk: Walk): JsonValue {
  if (typeof value === "string") return scalarOf(value, typesOf(schema, walk));
  if (typeof value !== "object" || value === null) return value;
  const parts = partsFor(Array.isArray(value) ? "array" : "object", schema, walk);
  if (Array.isArray(value)) {
    return value.map((item, index) => parts.reduce((now, part) => coerced(now, itemSchema(part, index), walk), item));
  }
  const entries = Object.entries(value).flatMap(([key, field]) => {
    if (field === null && parts.some((part) => isOptional(part, key, walk))) return [];
    return [[key, parts.reduce((now, part) => coerced(now, fieldSchema(part, key), walk), field)]];
  });
  return Object.fromEntries(entries);
}

/** True if a schema names a field, does not require it, and allows no null in it. */
function isOptional({ properties, required }: JsonObject, key: string, walk: Walk): boolean {
  if (!isObject(properties) || !Object.hasOwn(properties, key)) return false;
  return !(Array.isArray(required) && required.includes(key)) && !typesOf(properties[key], walk).has("null");
}

function scalarOf(text: string, types: ReadonlySet<string>): JsonValue {
  if (types.has("string")) return text;
  if (types.has("boolean") && (text === "true" || text === "false")) return text === "true";
  if (!types.has("number") || !/^-?\d+(\.\d+)?$/.test(text)) return text;
  const number = Number(text);
  // A number of so many digits would become another one.
  return Math.abs(number) <= Number.MAX_SAFE_INTEGER ? number : text;
}

/** The types that a schema allows; all of them if it says nothing about types. */
function typesOf(schema: JsonValue | undefined, walk: Walk, depth = 0): ReadonlySet<string> {
  walk.steps -= 1;
  if (!isObject(schema) || walk.steps < 0 || depth === maxDepth) return allTypes;
  const { type, enum: values, const: value, anyOf, oneOf, allOf, $ref: reference } = schema;
  const limits: ReadonlySet<string>[] = [];
  if (typeof type === "string") limits.push(new Set([nameOf(type)]));
  if (Array.isArray(type)) limits.push(new Set(type.map((each) => nameOf(String(each)))));
  if (Array.isArray(values)) limits.push(new Set(values.map(typeOf)));
  if (value !== undefined) limits.push(new Set([typeOf(value)]));
  for (const union of [anyOf, oneOf]) {
    if (Array.isArray(union)) limits.push(new Set(union.flatMap((each) => [...typesOf(each, walk, depth + 1)])));
  }
  if (Array.isArray(allOf)) limits.push(...allOf.map((each) => typesOf(each, walk, depth + 1)));
  if (typeof reference === "string") limits.push(typesOf(referred(reference, walk.root), walk, depth + 1));
  return limits.reduce((left, right) => left.intersection(right), allTypes);
}

/** The schemas that apply to the parts of an object or array. Of a union only a single one that allows it is known to apply. */
function partsFor(type: "object" | "array", schema: JsonValue | undefined, walk: Walk, depth = 0): JsonObject[] {
  if (!isObject(schema) || walk.steps < 0 || depth === maxDepth || !typesOf(schema, walk).has(type)) return [];
  const { anyOf, oneOf, allOf, $ref: reference } = schema;
  const unions = [anyOf, oneOf].map((union) =>
    Array.isArray(union) ? union.filter((each) => typesOf(each, walk).has(type)) : [],
  );
  const applied = [
    ...unions.flatMap((members) => (members.length === 1 ? members : [])),
    ...(Array.isArray(allOf) ? allOf : []),
    ...(typeof reference === "string" ? [referred(reference, walk.root)] : []),
  ];
  return [schema, ...applied.flatMap((each) => partsFor(type, each, walk, depth + 1))];
}

function fieldSchema({ properties, additionalProperties }: JsonObject, key: string): JsonValue | undefined {
  return isObject(properties) && Object.hasOwn(properties, key) ? properties[key] : additionalProperties;
}

function itemSchema({ prefixItems, items }: JsonObject, index: number): JsonValue | undefined {
  const first = Array.isArray(prefixItems) ? prefixItems : Array.isArray(items) ? items : [];
  return index < first.length ? first[index] : items;
}

/** Follows a reference within the schema, such as `#/$defs/line`. */
function referred(reference: string, root: JsonObject): JsonValue | undefined {
  if (!reference.startsWith("#")) return undefined;
  const keys = reference
    .slice(1)
    .split("/")
    .slice(1)
    .map((key) => key.replaceAll("~1", "/").replaceAll("~0", "~"));
  return keys.reduce<JsonValue | undefined>(
    (at, key) => (isObject(at) && Object.hasOwn(at, key) ? at[key] : undefined),
    root,
  );
}

/** An integer is a number of which the schema checks more. */
const nameOf = (type: string) => (type === "integer" ? "number" : type);

const typeOf = (value: JsonValue): string => {
  if (value === null) return "null";
  return Array.isArray(value) ? "array" : typeof value;
};

function isObject(value: JsonValue | undefined): value is JsonObject {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

const allTypes: ReadonlySet<string> = new Set(["array", "boolean", "null", "number", "object", "string"]);
const maxSteps = 100_000;
/** Maximum number of unions and references on the way to a type. */
const maxDepth = 50;
