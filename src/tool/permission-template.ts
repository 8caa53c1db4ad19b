import type { JsonObject, JsonValue } from "@bufbuild/protobuf";
import type { Ask } from "../core/ask.ts";

/**
 * Fills the holes of a template, `{env}` or `{target.host}`, with fields of the input. A list makes a text of each element. In a
 * value each `%`, `{`, wildcard, control character and character of the template's own text is written `%XX`, so that no two inputs
 * make one text by accident, and none that of a whole input. With a schema, a text that reads as a number or a boolean is written
 * `%"1"` in a field that may be either; no escape begins like that. A text for people has the values as they are. Returns undefined
 * if a field is absent or no text, number, boolean or list of these.
 */
export function fillTemplate(
  template: string,
  input: JsonObject,
  { isForPeople = false, schema }: { isForPeople?: boolean; schema?: JsonObject } = {},
): string[] | undefined {
  const pieces = template.split(hole);
  if (pieces.length === 1) return pieces;
  const own = [...new Set(pieces.filter((_, index) => index % 2 === 0).join(""))];
  let texts: string[] = [""];
  for (const [index, piece] of pieces.entries()) {
    const isMixed = index % 2 === 1 && schema !== undefined && !isTyped(schema, piece.split("."));
    const write = (value: Scalar) => {
      if (isForPeople) return String(value);
      const text = escaped(String(value), own);
      return isMixed && typeof value === "string" && readsAsOther(value) ? `%"${text}"` : text;
    };
    const values = index % 2 === 0 ? [piece] : valuesAt(input, piece)?.map(write);
    if (values === undefined || values.length * texts.length > maxTexts) return undefined;
    texts = texts.flatMap((text) => values.map((value) => text + value));
  }
  return texts;
}

/** Fills the templates of an ask; undefined if the input lacks a field of its patterns. */
export function fillAsk(template: Ask, input: JsonObject, schema?: JsonObject): Ask | undefined {
  const options = schema === undefined ? {} : { schema };
  const { patterns, always = [], ...rest } = template;
  const filled = patterns.map((pattern) => fillTemplate(pattern, input, options));
  if (filled.includes(undefined)) return undefined;
  const wildcards = always.flatMap((pattern) => fillTemplate(pattern, input, options) ?? []);
  return {
    ...rest,
    patterns: [...new Set(filled.flatMap((texts) => texts ?? []))],
    ...(wildcards.length > 0 && { always: wildcards }),
  };
}

function valuesAt(input: JsonObject, path: string): Scalar[] | undefined {
  let value: JsonValue | undefined = input;
  for (const key of path.split(".")) {
    if (typeof value !== "object" || value === null || Array.isArray(value) || !Object.hasOwn(value, key))
      return undefined;
    value = value[key];
  }
  const values = Array.isArray(value) ? value : [value];
  if (values.length === 0 || !values.every(isScalar)) return undefined;
  return values;
}

type Scalar = string | number | boolean;

const isScalar = (value: JsonValue | undefined): value is Scalar =>
  typeof value === "string" || typeof value === "number" || typeof value === "boolean";

/** Checks if a schema allows one type of scalars in a field, or in the elements of its list. */
function isTyped(schema: JsonValue | undefined, [key, ...path]: readonly string[]): boolean {
  if (typeof schema !== "object" || schema === null || Array.isArray(schema)) return false;
  const { type, properties, items } = schema;
  if (key === undefined)
    return type === "array" ? isTyped(items, []) : typeof type === "string" && scalarTypes.has(type);
  if (typeof properties !== "object" || properties === null || Array.isArray(properties)) return false;
  return Object.hasOwn(properties, key) && isTyped(properties[key], path);
}

const scalarTypes: ReadonlySet<string> = new Set(["string", "number", "integer", "boolean"]);

/** Checks if a text is that of a number or of a boolean. */
const readsAsOther = (text: string) => text === "true" || text === "false" || String(Number(text)) === text;

function escaped(value: string, own: readonly string[]): string {
  // Few values have such a character.
  if (!special.test(value) && !own.some((character) => value.includes(character))) return value;
  return [...value]
    .map((character) => (special.test(character) || own.includes(character) ? hex(character) : character))
    .join("");
}

const special = /[%{*?\p{Cc}]/u;
const hex = (character: string) =>
  [...Buffer.from(character)].map((byte) => `%${byte.toString(16).toUpperCase().padStart(2, "0")}`).join("");
const hole = /\{([A-Za-z0-9_.-]+)\}/g;
const maxTexts = 64;

/** Finds out why two inputs could fill a template to one text; undefined if they cannot. */
export function templateFault(template: string): string | undefined {
  const pieces = template.split(hole);
  if (pieces.some((piece, index) => index % 2 === 0 && /[{}]/.test(piece)))
    return "has a brace that belongs to no hole; a hole is {FIELD} or {FIELD.FIELD}";
  if (pieces.some((piece, index) => index % 2 === 0 && piece === "" && index > 0 && index < pieces.length - 1))
    return "has two holes with nothing between them; write a character such as / between them";
  return undefined;
}
