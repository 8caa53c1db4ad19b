import { clone, type JsonObject, type JsonValue, toJson } from "@bufbuild/protobuf";
import { ToolRegistration, type WorkerTool, WorkerToolSchema } from "../../../gen/opencode/tool/v1/worker_pb.ts";
import { canonicalJson } from "../../core/json.ts";
import type { WorkerRights } from "../../core/principal.ts";
import { lentPermissions } from "../../core/worker-rights.ts";
import { wildcard } from "../../policy/wildcard.ts";
import { patternWeight } from "../../tool/codec.ts";
import { templateProblem } from "./templates.ts";

/** The reason why a tool is not offered. */
export interface DeclarationProblem {
  registration: ToolRegistration;
  message: string;
}

/** Checks if a permission belongs to the service: a tool of a worker must not ask it, since rules may allow it by default. */
export type IsClosed = (permission: string) => boolean;

/** Returns what a declaration says, as text: everything but what only limits its work. */
export function textOfDeclaration(declared: WorkerTool): string {
  const said = clone(WorkerToolSchema, declared);
  delete said.queueMs;
  said.maxConcurrent = 0;
  return canonicalJson(toJson(WorkerToolSchema, said));
}

/** Finds out why a token may not bring a tool, or why the tool cannot be used; undefined if it may. */
export function declarationProblem(
  declared: WorkerTool,
  rights: WorkerRights,
  isClosed: IsClosed,
): DeclarationProblem | undefined {
  const { name, permissions } = declared;
  if (!matches(name, rights.tools))
    return notYours(`the token may not bring the tool "${name}", only ${rights.tools.join(", ")}`);
  const closed = permissions.find(({ permission }) => !mayAsk(permission, name, rights, isClosed))?.permission;
  if (closed !== undefined) return notYours(askProblem(closed, name, isClosed));
  const invalid = invalidity(declared);
  return invalid === undefined ? undefined : { registration: ToolRegistration.INVALID, message: invalid };
}

/**
 * Checks if a tool may ask a permission: its own name, or one that its token names; one of the service's only if the token names it
 * without wildcards, since rules may allow it by default.
 */
export function mayAsk(permission: string, tool: string, { permissions }: WorkerRights, isClosed: IsClosed): boolean {
  if (permission === tool) return true;
  if (isClosed(permission)) return lentPermissions.includes(permission) && permissions.includes(permission);
  return matches(permission, permissions);
}

/** Says why a tool may not ask a permission. */
export function askProblem(permission: string, tool: string, isClosed: IsClosed): string {
  const asked = `the tool "${tool}" asks the permission "${permission}"`;
  if (!isClosed(permission))
    return `${asked}, which the permissions of its token do not name; ask "${tool}", or a permission of the token`;
  const next = lentPermissions.includes(permission)
    ? `name "${permission}" in the permissions of its token, or ask`
    : "ask";
  return `${asked}, which belongs to the service; ${next} "${tool}"`;
}

/** Checks if a name matches one of the patterns. */
export function matches(name: string, patterns: readonly string[]): boolean {
  return patterns.some((pattern) => wildcard(name, pattern));
}

function notYours(message: string): DeclarationProblem {
  return { registration: ToolRegistration.NOT_YOURS, message };
}

function invalidity(declared: WorkerTool): string | undefined {
  const { description, inputSchema = {}, outputSchema } = declared;
  if (description === "") return "it has no description; write one for models";
  const field = fieldsOfProcesses.find((name) => declared[name] !== empty[name] && declared[name] !== undefined);
  if (field !== undefined) return `its field ${field} is only for tool processes; leave it out`;
  if (inputSchema.type !== "object") return 'its input_schema is not that of an object; write "type": "object"';
  const input = schemaProblem(inputSchema);
  if (input !== undefined) return `input_schema: ${input}`;
  const output = outputSchema && schemaProblem(outputSchema);
  if (output !== undefined) return `output_schema: ${output}`;
  return templateProblem(declared);
}

const empty = {
  inits: false,
  coversBody: false,
  experimental: false,
  changeForm: "",
  source: "",
  file: "",
  asks: undefined,
};
const fieldsOfProcesses = ["inits", "coversBody", "experimental", "changeForm", "source", "file", "asks"] as const;

const maxSchemaBytes = 65_536;
const maxSchemaLevels = 32;
/** Sum of the weights of all patterns of a schema; see `patternWeight`. */
const maxPatternsWeight = 20_000;
/** Number of subschemas that may apply to one value of an input, and steps of finding that out. */
const maxApplied = 10_000;
const maxSteps = 200_000;
/** Levels of the input that are analysed. */
const inputLevels = 32;

/**
 * Finds out why a schema of a stranger is not used; undefined if it may be compiled. Compiling and checking then take a time that
 * its size and that of an input bound.
 */
export function schemaProblem(schema: JsonObject): string | undefined {
  try {
    checkShape(schema);
    checkGrowth(schema);
    return undefined;
  } catch (error) {
    if (error instanceof UnsafeSchema) return error.message;
    throw error;
  }
}

class UnsafeSchema extends Error {}

/** Checks size, levels, references and patterns. Walks without recursion, since levels are what it limits. */
function checkShape(schema: JsonObject): void {
  let patterns = 0;
  const ahead: { value: JsonValue; level: number }[] = [{ value: schema, level: 1 }];
  for (let next = ahead.pop(); next; next = ahead.pop()) {
    const { value, level } = next;
    if (typeof value !== "object" || value === null) continue;
    if (level > maxSchemaLevels)
      throw new UnsafeSchema(`the schema has more than ${maxSchemaLevels} levels; define parts under $defs`);
    for (const [name, inner] of Object.entries(value)) {
      if (!Array.isArray(value)) checkKeyword(name, inner, level);
      if (name === "pattern" && typeof inner === "string") patterns += patternWeight(inner);
      if (name === "patternProperties" && isObject(inner))
        patterns += Object.keys(inner).reduce((sum, each) => sum + patternWeight(each), 0);
      ahead.push({ value: inner, level: level + 1 });
    }
  }
  const bytes = Buffer.byteLength(JSON.stringify(schema));
  if (bytes > maxSchemaBytes)
    throw new UnsafeSchema(`the schema has ${bytes} bytes as JSON, at most ${maxSchemaBytes} are allowed`);
  if (patterns > maxPatternsWeight)
    throw new UnsafeSchema("its patterns repeat too much; shorten them, or use minLength and maxLength");
}

function checkKeyword(name: string, value: JsonValue, level: number): void {
  if (name === "$ref" && typeof value === "string" && value !== "#" && !value.startsWith("#/"))
    throw new UnsafeSchema(
      `$ref ${JSON.stringify(value)} is not a place in this schema; write that part under $defs and refer to it as #/$defs/NAME`,
    );
  // Under `properties` the same name is that of a property, and holds a schema.
  if (typeof value !== "object" && (unsupported.has(name) || (name === "$id" && level > 1)))
    throw new UnsafeSchema(`${name} is not supported; refer to parts as #/$defs/NAME`);
}

const unsupported: ReadonlySet<string> = new Set([
  "$async",
  "$dynamicRef",
  "$dynamicAnchor",
  "$recursiveRef",
  "$recursiveAnchor",
]);

/** Keywords with schemas for the same value, by what they hold. */
const inPlace = {
  one: ["not", "if", "then", "else"],
  list: ["allOf", "anyOf", "oneOf"],
  named: ["dependentSchemas"],
} as const;
/** Keywords with schemas for any part of the value. */
const forParts = {
  one: ["items", "additionalItems", "additionalProperties", "unevaluatedItems", "unevaluatedProperties", "contains"],
  list: ["prefixItems", "items"],
  named: ["patternProperties"],
} as const;

/** Checks that no value of an input is checked by very many subschemas, such as by references that double at each level. */
function checkGrowth(root: JsonObject): void {
  let steps = 0;
  const known = new Map<JsonObject, Map<number, number>>();

  function count(): void {
    steps += 1;
    if (steps > maxSteps) throw tooComplex();
  }

  /** Returns all subschemas that apply to a value to which a schema applies, as often as they do. */
  function appliedWith(schema: JsonObject): JsonObject[] {
    const found: JsonObject[] = [];
    const ahead = [{ schema, path: [schema] }];
    for (let next = ahead.pop(); next; next = ahead.pop()) {
      count();
      found.push(next.schema);
      if (found.length > maxApplied) throw tooComplex();
      const target = typeof next.schema.$ref === "string" ? [resolve(root, next.schema.$ref)] : [];
      for (const inner of [...heldBy(next.schema, inPlace), ...target.filter(isObject)]) {
        if (next.path.includes(inner)) throw new UnsafeSchema("the schema refers to itself without end");
        ahead.push({ schema: inner, path: [...next.path, inner] });
      }
    }
    return found;
  }

  /** Returns a bound of the number of subschemas that apply to any one part of a value, up to some levels below it. */
  function maxAppliedTo(schema: JsonObject, levels: number): number {
    const before = known.get(schema)?.get(levels);
    if (before !== undefined) return before;
    const applied = appliedWith(schema);
    let most = 0;
    if (levels > 0) {
      const shared = applied.flatMap((each) => heldBy(each, forParts));
      const named = Map.groupBy(
        applied.flatMap(({ properties }) => (isObject(properties) ? Object.entries(properties) : [])),
        ([name]) => name,
      );
      const sharedCount = sum(shared, levels - 1);
      const ofNames = [...named.values()].map((schemas) =>
        sum(
          schemas.flatMap(([, each]) => (isObject(each) ? [each] : [])),
          levels - 1,
        ),
      );
      most = sharedCount + Math.max(0, ...ofNames);
    }
    const total = Math.max(applied.length, most);
    if (total > maxApplied) throw tooComplex();
    known.set(schema, (known.get(schema) ?? new Map()).set(levels, total));
    return total;
  }

  function sum(schemas: readonly JsonObject[], levels: number): number {
    let total = 0;
    for (const each of schemas) {
      count();
      total += maxAppliedTo(each, levels);
    }
    return total;
  }

  maxAppliedTo(root, inputLevels);
}

function tooComplex(): UnsafeSchema {
  return new UnsafeSchema("the schema applies too many parts of itself to one value; refer to each part once");
}

/** Returns the schemas that a schema holds under keywords. */
function heldBy(
  schema: JsonObject,
  { one, list, named }: { one: readonly string[]; list: readonly string[]; named: readonly string[] },
): JsonObject[] {
  const at = (name: string) => (Object.hasOwn(schema, name) ? schema[name] : undefined);
  return [
    ...one.map(at),
    ...list.flatMap((name) => [at(name)].flatMap((value) => (Array.isArray(value) ? value : []))),
    ...named.flatMap((name) => [at(name)].flatMap((value) => (isObject(value) ? Object.values(value) : []))),
  ].filter(isObject);
}

/** Returns the part of a schema to which a JSON pointer such as `#/$defs/NAME` leads. */
function resolve(root: JsonObject, reference: string): JsonValue | undefined {
  let value: JsonValue | undefined = root;
  for (const key of reference.split("/").slice(1).map(unescapePointer)) {
    if (typeof value !== "object" || value === null || !Object.hasOwn(value, key)) return undefined;
    value = Array.isArray(value) ? value[Number(key)] : value[key];
  }
  return value;
}

function unescapePointer(text: string): string {
  return safelyDecoded(text).replaceAll("~1", "/").replaceAll("~0", "~");
}

function safelyDecoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

const isObject = (value: JsonValue | undefined): value is JsonObject =>
  typeof value === "object" && value !== null && !Array.isArray(value);
