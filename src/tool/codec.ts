import type { JsonObject, JsonValue } from "@bufbuild/protobuf";
import { RE2JS } from "@bufbuild/re2";
import { Ajv, type ValidateFunction } from "ajv";
import { Ajv2020 } from "ajv/dist/2020.js";
import * as z from "zod";
import { canonicalJson, isObject } from "../core/json.ts";
import { InvalidInput, InvalidOutput } from "./errors.ts";

/** A schema of values: of zod, or a JSON Schema where the tool was not written for zod. */
export type ValueSchema = z.ZodType | JsonObject;

/** A decoded value that fits a schema. */
export type Decoded<S extends ValueSchema> = S extends z.ZodType ? z.output<S> : JsonObject;

/** Decodes the input of a tool. */
export interface InputCodec {
  readonly schema: JsonObject;
  /** Throws `InvalidInput` with the path of each field that does not fit. */
  decode(value: JsonObject): unknown;
}

/** Creates the codec of a tool's input, which fills in defaults. Throws if the schema is not valid. */
export function inputCodec(tool: string, schema: ValueSchema): InputCodec {
  if (isZod(schema)) {
    return lenient(tool, toJsonSchema(schema), (value) => {
      const result = z.safeParse(schema, value);
      return result.success ? { decoded: result.data } : { issues: zodIssues(result.error) };
    });
  }
  const check = compile(tool, schema);
  return lenient(tool, schema, (value) => {
    const filled = copyJson(value);
    const issues = check(filled);
    return issues.length === 0 ? { decoded: filled } : { issues };
  });
}

/** Copies JSON in a tenth of the time that structuredClone takes. */
function copyJson(value: JsonValue): JsonValue {
  if (typeof value !== "object" || value === null) return value;
  if (Array.isArray(value)) return value.map(copyJson);
  return Object.fromEntries(Object.entries(value).map(([name, inner]) => [name, copyJson(inner)]));
}

/** Makes a codec that tries input that does not fit a second time, with numbers and booleans in place of strings that are exactly one. */
function lenient(
  tool: string,
  schema: JsonObject,
  attempt: (value: JsonValue) => { decoded: unknown } | { issues: Issue[] },
): InputCodec {
  return {
    schema,
    decode(value) {
      const first = attempt(value);
      if ("decoded" in first) return first.decoded;
      const second = attempt(coerceScalars(value, schema));
      if ("decoded" in second) return second.decoded;
      throw new InvalidInput(tool, second.issues);
    },
  };
}

interface Issue {
  path: string;
  message: string;
}

/** Encodes the output of a tool. */
export interface OutputCodec {
  readonly schema: JsonObject;
  /** Returns the output as JSON; throws `InvalidOutput` if it does not fit. */
  encode(value: unknown): JsonValue;
}

/** Creates the codec of a tool's output. */
export function outputCodec(tool: string, schema: ValueSchema): OutputCodec {
  if (isZod(schema)) {
    return {
      schema: toJsonSchema(schema),
      encode(value) {
        const result = z.safeEncode(schema, value);
        if (!result.success) throw new InvalidOutput(tool, zodIssues(result.error));
        return asJson(tool, result.data);
      },
    };
  }
  const check = compile(tool, schema);
  return {
    schema,
    encode(value) {
      const json = asJson(tool, value);
      const issues = check(json);
      if (issues.length > 0) throw new InvalidOutput(tool, issues);
      return json;
    },
  };
}

/** Reports whether a value is a schema of zod 4, from any copy of zod. */
export function isZod(value: unknown): value is z.ZodType {
  return typeof value === "object" && value !== null && "_zod" in value;
}

function toJsonSchema(schema: z.ZodType): JsonObject {
  // zod returns plain JSON, typed as its schema type.
  return z.toJSONSchema(schema, {
    io: "input",
    unrepresentable: "any",
    override({ zodSchema, jsonSchema }) {
      // Another copy of zod stores descriptions in its own registry, which only its schemas can read.
      if (jsonSchema.description !== undefined || !("description" in zodSchema)) return;
      if (typeof zodSchema.description === "string") jsonSchema.description = zodSchema.description;
    },
  }) as JsonObject;
}

const maxSchemaLength = 262_144;
const maxSchemaDepth = 100;

/** Checks what a compiler would spend too much on, or fetch: the size of a schema, its nesting, and references to other documents. */
function checkSchema(tool: string, schema: JsonObject): void {
  const refuse = (why: string) => new Error(`tool "${tool}" has an invalid JSON Schema: ${why}`);
  const ahead: { value: unknown; depth: number }[] = [{ value: schema, depth: 0 }];
  for (let next = ahead.pop(); next; next = ahead.pop()) {
    const { value, depth } = next;
    if (typeof value !== "object" || value === null) continue;
    if (depth > maxSchemaDepth) throw refuse(`it has more than ${maxSchemaDepth} levels; define parts under $defs`);
    for (const [name, inner] of Object.entries(value)) {
      if (name === "$async") throw refuse("$async is not supported; leave it out");
      if (/^\$(dynamic|recursive)?[rR]ef$/.test(name) && typeof inner === "string" && !inner.startsWith("#"))
        throw refuse(`${name} ${JSON.stringify(inner)} leads to another document; write that part under $defs`);
      ahead.push({ value: inner, depth: depth + 1 });
    }
  }
  const { length } = JSON.stringify(schema);
  if (length > maxSchemaLength) throw refuse(`it has ${length} characters, at most ${maxSchemaLength} are allowed`);
}

const common = { strict: false, validateFormats: false } as const;
const metaSchemasByDraft = new Map<boolean, Ajv>();

/** Returns what checks schemas of a draft, which is compiled once. */
function metaSchemas(isOld: boolean): Ajv {
  const known = metaSchemasByDraft.get(isOld) ?? withLinearUniqueness(isOld ? new Ajv(common) : new Ajv2020(common));
  metaSchemasByDraft.set(isOld, known);
  return known;
}

/** Compiles a schema to a function that fills defaults into a value, and returns what does not fit. */
function compile(tool: string, schema: JsonObject): (value: JsonValue) => Issue[] {
  checkSchema(tool, schema);
  // Without $schema the current draft is meant; draft-07 is the only older one in use.
  const isOld = typeof schema.$schema === "string" && schema.$schema.includes("draft-07");
  const budget: PatternBudget = { left: maxPatternWork };
  const regExp = Object.assign((pattern: string) => linearPattern(pattern, budget), { code: "linearPattern" });
  const options = {
    ...common,
    // `metaSchemas` checks the schema: compiling its meta-schema for each tool takes ten times as long as the tool.
    meta: false,
    validateSchema: false,
    allErrors: true,
    useDefaults: true,
    // Otherwise a schema that refers to a large part many times becomes much more code.
    inlineRefs: false,
    code: { regExp },
  } as const;
  try {
    void metaSchemas(isOld).validateSchema(schema, true);
    const compiled = withLinearUniqueness(isOld ? new Ajv(options) : new Ajv2020(options)).compile(schema);
    return (value) => {
      budget.left = maxPatternWork;
      return compiled(value) ? [] : ajvIssues(compiled);
    };
  } catch (cause) {
    const why = cause instanceof Error ? cause.message : String(cause);
    throw new Error(`tool "${tool}" has an invalid JSON Schema: ${why}`, { cause });
  }
}

/** Replaces the check of `uniqueItems`, which compares every two items. */
function withLinearUniqueness(ajv: Ajv): Ajv {
  ajv.removeKeyword("uniqueItems");
  return ajv.addKeyword({
    keyword: "uniqueItems",
    type: "array",
    schemaType: "boolean",
    error: { message: "must NOT have duplicate items" },
    validate: (isWanted: boolean, items: JsonValue[]) =>
      !isWanted || new Set(items.map(canonicalJson)).size === items.length,
  });
}

/** Checks that a value is the same after a round trip through JSON, since output is stored and sent as JSON. */
function asJson(tool: string, value: unknown): JsonValue {
  const text = JSON.stringify(value, (_key, part: unknown) => {
    if (typeof part === "number" && !Number.isFinite(part)) throw new InvalidOutput(tool, [notJson(String(part))]);
    if (typeof part === "bigint" || typeof part === "function" || typeof part === "symbol") {
      throw new InvalidOutput(tool, [notJson(`a ${typeof part}`)]);
    }
    return part;
  });
  if (text === undefined) throw new InvalidOutput(tool, [notJson("undefined")]);
  return JSON.parse(text);
}

const notJson = (what: string) => ({ path: "", message: `${what} is not JSON` });

function zodIssues({ issues }: z.core.$ZodError): Issue[] {
  return issues.map(({ path, message }) => ({ path: path.join("."), message }));
}

function ajvIssues({ errors }: ValidateFunction): Issue[] {
  return (errors ?? []).map(({ instancePath, message = "does not fit", params }) => ({
    path: instancePath.slice(1).replaceAll("/", "."),
    message: "additionalProperty" in params ? `${message}: ${params.additionalProperty}` : message,
  }));
}

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

const allTypes: ReadonlySet<string> = new Set(["array", "boolean", "null", "number", "object", "string"]);
const maxSteps = 100_000;
/** Maximum number of unions and references on the way to a type. */
const maxDepth = 50;

/** A compiled pattern of a schema. */
interface LinearPattern {
  test(text: string): boolean;
  toString(): string;
}

/** The work that the patterns of one check may do together. */
interface PatternBudget {
  left: number;
}

/** Work that the patterns of one check may do: about a quarter of a second. */
const maxPatternWork = 10_000_000;

/**
 * Compiles a pattern so that matching takes time linear in the text; throws for one that needs backtracking. A text for which the
 * budget does not suffice does not match.
 */
function linearPattern(pattern: string, budget: PatternBudget): LinearPattern {
  const weight = patternWeight(pattern);
  try {
    const compiled = RE2JS.compile(pattern.replaceAll(/\\u([0-9a-fA-F]{4})/g, "\\x{$1}"));
    return {
      test(text) {
        budget.left -= text.length * weight;
        return budget.left >= 0 && compiled.test(text);
      },
      toString: () => pattern,
    };
  } catch (cause) {
    const why = cause instanceof Error ? cause.message : String(cause);
    throw new Error(
      `the pattern ${JSON.stringify(pattern)} cannot be matched in linear time (${why}); write it without lookaround and back references`,
      { cause },
    );
  }
}

/** Estimates the work of a pattern for each character: its length, in which a class of Unicode counts more, times its repetitions. */
export function patternWeight(pattern: string): number {
  const classes = pattern.match(/\\[pP]/g)?.length ?? 0;
  const counts = [...pattern.matchAll(/\{(\d+)(?:,(\d*))?\}/g)].map(([, min, max]) => Number(max || min));
  const repetitions = counts.reduce((sum, count) => sum + count, 0);
  return (pattern.length + 50 * classes) * Math.max(1, repetitions);
}
