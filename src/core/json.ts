import type { JsonObject, JsonValue } from "@bufbuild/protobuf";

/** Writes JSON with sorted keys and no spaces: equal values give equal text (RFC 8785, for values that JSON.stringify writes). */
export function canonicalJson(value: JsonValue | undefined): string {
  if (value === null || typeof value !== "object") return JSON.stringify(value ?? null);
  if (Array.isArray(value)) return `[${value.map(canonicalJson).join(",")}]`;
  const fields = Object.keys(value)
    .sort()
    .map((key) => `${JSON.stringify(key)}:${canonicalJson(value[key])}`);
  return `{${fields.join(",")}}`;
}

/** A value of JSON that has no members, at its JSON pointer (RFC 6901): the string itself, or the JSON of any other value. */
export interface JsonLeaf {
  path: string;
  text: string;
}

/** Lists the leaves of a value, in its order. An empty object or list is a leaf too. */
export function jsonLeaves(value: JsonValue, path = ""): JsonLeaf[] {
  const members = typeof value === "object" && value !== null ? Object.entries(value) : [];
  if (members.length === 0) return [{ path, text: typeof value === "string" ? value : JSON.stringify(value) }];
  return members.flatMap(([key, member]) =>
    jsonLeaves(member, `${path}/${key.replaceAll("~", "~0").replaceAll("/", "~1")}`),
  );
}

/** Copies an object as JSON; drops what JSON cannot hold. */
export const plainJson = (value: object): JsonObject => JSON.parse(JSON.stringify(value));

/** Checks for an object that is no list. */
export function isObject(value: JsonValue | undefined): value is JsonObject;
export function isObject(value: unknown): value is Record<string, unknown>;
export function isObject(value: unknown): boolean {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** Returns the length of a value as JSON, also of a message with numbers of 64 bits. */
export function jsonLength(value: object): number {
  return JSON.stringify(value, (_, each) => (typeof each === "bigint" ? String(each) : each)).length;
}
