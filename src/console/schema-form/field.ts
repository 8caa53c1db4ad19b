import type { JsonObject, JsonValue } from "@bufbuild/protobuf";
import { isObject } from "../../core/json.ts";

/** The part of a JSON Schema that a form can show. */
export interface Field {
  readonly shape: Shape;
  readonly description: string;
  /** The default; undefined if the schema has none. */
  readonly fallback: JsonValue | undefined;
  /** The limits in words, such as `at most 200`. */
  readonly hints: readonly string[];
}

/** A field of an object. */
export interface NamedField extends Field {
  readonly name: string;
  readonly isRequired: boolean;
}

/** The kind of input that a value needs; `json` stands for values without a matching input. */
export type Shape =
  | { readonly kind: "text" }
  | { readonly kind: "number"; readonly isWhole: boolean }
  | { readonly kind: "boolean" }
  | { readonly kind: "choice"; readonly values: readonly JsonValue[] }
  | { readonly kind: "list"; readonly item: Field }
  | { readonly kind: "object"; readonly fields: readonly NamedField[] }
  | { readonly kind: "json" };

/** Reads a JSON Schema (2020-12 or draft-07). */
export function readSchema(schema: JsonObject): Field {
  return readField(schema, schema, []);
}

function readField(written: JsonValue | undefined, root: JsonObject, seen: readonly string[]): Field {
  const { schema, refs } = resolve(written, root, seen);
  // A form cannot show a recursive schema.
  if (schema === undefined) return { shape: { kind: "json" }, description: "", fallback: undefined, hints: [] };
  return {
    shape: shapeOf(schema, root, refs),
    description: textOf(objectOf(written).description) || textOf(schema.description),
    fallback: objectOf(written).default ?? schema.default,
    hints: hintsOf(schema),
  };
}

function shapeOf(schema: JsonObject, root: JsonObject, refs: readonly string[]): Shape {
  const values = choicesOf(schema);
  if (values !== undefined) return { kind: "choice", values };
  const type = typeOf(schema);
  if (type === "string") return { kind: "text" };
  if (type === "number" || type === "integer") return { kind: "number", isWhole: type === "integer" };
  if (type === "boolean") return { kind: "boolean" };
  if (type === "array" && isObject(schema.items)) return { kind: "list", item: readField(schema.items, root, refs) };
  if (isObject(schema.properties) && (type === "object" || type === undefined)) {
    return { kind: "object", fields: fieldsOf(schema, schema.properties, root, refs) };
  }
  if (type === "object" && schema.additionalProperties === false) return { kind: "object", fields: [] };
  return { kind: "json" };
}

function fieldsOf(schema: JsonObject, properties: JsonObject, root: JsonObject, refs: readonly string[]): NamedField[] {
  const required = Array.isArray(schema.required) ? schema.required : [];
  return Object.entries(properties).map(([name, value]) => ({
    ...readField(value, root, refs),
    name,
    isRequired: required.includes(name),
  }));
}

/** Follows references and reduces "T or null" to T. The schema is undefined if it is recursive. */
function resolve(
  written: JsonValue | undefined,
  root: JsonObject,
  seen: readonly string[],
): { schema: JsonObject | undefined; refs: readonly string[] } {
  const schema = objectOf(written);
  const ref = textOf(schema.$ref);
  if (ref !== "") {
    if (seen.includes(ref)) return { schema: undefined, refs: seen };
    return resolve(targetOf(ref, root), root, [...seen, ref]);
  }
  const alternatives = [schema.anyOf, schema.oneOf].find(Array.isArray) ?? [];
  const [only, ...others] = alternatives.filter((one) => objectOf(one).type !== "null");
  if (only === undefined || others.length > 0) return { schema, refs: seen };
  return resolve({ ...schema, anyOf: [], oneOf: [], ...objectOf(only) }, root, seen);
}

/** The target of a reference within the schema, such as `#/$defs/todo`. */
function targetOf(ref: string, root: JsonObject): JsonValue | undefined {
  if (!ref.startsWith("#")) return undefined;
  const steps = ref.slice(1).split("/").slice(1);
  return steps.reduce<JsonValue | undefined>(
    (place, step) => objectOf(place)[step.replaceAll("~1", "/").replaceAll("~0", "~")],
    root,
  );
}

function choicesOf(schema: JsonObject): readonly JsonValue[] | undefined {
  if (Array.isArray(schema.enum)) return schema.enum.filter((value) => value !== null);
  if (schema.const !== undefined) return [schema.const];
  const alternatives = [schema.anyOf, schema.oneOf].find(Array.isArray) ?? [];
  const values = alternatives.map((one) => objectOf(one).const);
  return values.length > 0 && values.every((value) => value !== undefined) ? values : undefined;
}

function typeOf({ type }: JsonObject): string | undefined {
  const types = [type].flat().filter((one) => one !== "null");
  return types.length === 1 && typeof types[0] === "string" ? types[0] : undefined;
}

function hintsOf(schema: JsonObject): readonly string[] {
  return Object.entries(hintWords).flatMap(([key, words]) => {
    const value = schema[key];
    // zod writes the largest safe integer where no limit is set.
    if (typeof value === "number" && Math.abs(value) === Number.MAX_SAFE_INTEGER) return [];
    return typeof value === "number" || typeof value === "string" ? [words(String(value))] : [];
  });
}

const hintWords: Readonly<Record<string, (value: string) => string>> = {
  minimum: (value) => `at least ${value}`,
  exclusiveMinimum: (value) => `more than ${value}`,
  maximum: (value) => `at most ${value}`,
  exclusiveMaximum: (value) => `less than ${value}`,
  multipleOf: (value) => `a multiple of ${value}`,
  minLength: (value) => `at least ${value} characters`,
  maxLength: (value) => `at most ${value} characters`,
  pattern: (value) => `matches ${value}`,
  format: (value) => value,
  minItems: (value) => `at least ${value} items`,
  maxItems: (value) => `at most ${value} items`,
};

/** The kind of a value in words. */
export function kindWords({ shape }: Field): string {
  if (shape.kind === "number") return shape.isWhole ? "whole number" : "number";
  if (shape.kind === "boolean") return "boolean";
  if (shape.kind === "choice") return "choice";
  if (shape.kind === "list") return `list of ${kindWords(shape.item)}`;
  return shape.kind === "json" ? "JSON" : shape.kind;
}

/** The value if it is an object, otherwise an empty object. */
export function objectOf(value: JsonValue | undefined): JsonObject {
  return isObject(value) ? value : {};
}

function textOf(value: JsonValue | undefined): string {
  return typeof value === "string" ? value : "";
}

/** A value that is being filled in; undefined if it is not set. */
export type Draft = JsonValue | undefined;

/** The initial value of a form: required objects and texts are empty, optional values are not set. */
export function emptyDraft({ shape }: Field): Draft {
  if (shape.kind === "text") return "";
  if (shape.kind === "boolean") return false;
  if (shape.kind === "list") return [];
  if (shape.kind === "choice") return shape.values.length === 1 ? shape.values[0] : undefined;
  if (shape.kind !== "object") return undefined;
  const required = shape.fields.filter(({ isRequired }) => isRequired);
  return required.reduce<JsonObject>((draft, field) => withField(draft, field.name, emptyDraft(field)), {});
}

/** Returns the object with one field set or removed. */
export function withField(object: Draft, name: string, value: Draft): JsonObject {
  const { [name]: _, ...rest } = objectOf(object);
  return value === undefined ? rest : { ...objectOf(object), [name]: value };
}

/** The service's validation errors: by path of a field, and the rest. */
export interface Problems {
  readonly at: ReadonlyMap<string, string>;
  readonly rest: string;
}

/** An input without problems. */
export const noProblems: Problems = { at: new Map(), rest: "" };

/** Assigns each line of the service's validation error to a field. */
export function readProblems(message: string, field: Field): Problems {
  const at = new Map<string, string>();
  const lines = message.split("\n").filter((line) => {
    const [, path = "", text = ""] = /^- ([^:]*): (.*)$/.exec(line) ?? [];
    const missing = /required property '(.+)'$/.exec(text)?.[1];
    // The service names the whole input `input`. A problem of a field of that name is shown below the form.
    const parent = path === "input" ? "" : path;
    const full = [parent, missing].filter((part) => part !== undefined && part !== "").join(".");
    if (text === "" || full === "" || fieldAt(field, full) === undefined) return true;
    at.set(full, missing === undefined ? text : "is required");
    return false;
  });
  return { at, rest: at.size > 0 && lines.length <= 2 ? "" : lines.join("\n") };
}

/** The field at a path such as `todos.0.status`. */
function fieldAt(field: Field, path: string): Field | undefined {
  return path.split(".").reduce<Field | undefined>((place, step) => {
    if (place?.shape.kind === "list") return /^\d+$/.test(step) ? place.shape.item : undefined;
    return place?.shape.kind === "object" ? place.shape.fields.find(({ name }) => name === step) : undefined;
  }, field);
}
