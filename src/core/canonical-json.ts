import type { JsonValue } from "@bufbuild/protobuf";

/** Writes JSON with sorted keys and no spaces: equal values give equal text (RFC 8785, for values that JSON.stringify writes). */
export function canonicalJson(value: JsonValue | undefined): string {
  if (value === null || typeof value !== "object") return JSON.stringify(value ?? null);
  if (Array.isArray(value)) return `[${value.map(canonicalJson).join(",")}]`;
  const fields = Object.keys(value)
    .sort()
    .map((key) => `${JSON.stringify(key)}:${canonicalJson(value[key])}`);
  return `{${fields.join(",")}}`;
}
