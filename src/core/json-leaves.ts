import type { JsonValue } from "@bufbuild/protobuf";

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
