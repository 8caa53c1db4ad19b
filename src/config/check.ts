import { closest } from "fastest-levenshtein";
import { z } from "zod";
import { ConfigError } from "./errors.ts";
import { readToml, type Toml } from "./toml.ts";

/** Parses TOML and checks it against a schema; the error lists all problems, each with its line. */
export function checkToml<T>(schema: z.ZodType<T>, text: string, source: string): { value: T } & Pick<Toml, "lineOf"> {
  const { value, lineOf } = readToml(text, source);
  const label = (path: readonly PropertyKey[], unknown: string) => {
    const line = lineOf(unknown === "" ? path : [...path, unknown]);
    return `${line === undefined ? "" : `line ${line}: `}${dotted(path)}`;
  };
  return { value: check(schema, value, source, label), lineOf };
}

/** Checks a value against a schema; `label` returns the name of a part of it, or of an unknown key in it, for errors. */
export function check<T>(
  schema: z.ZodType<T>,
  value: unknown,
  source: string,
  label: (path: readonly PropertyKey[], unknown: string) => string,
): T {
  const result = schema.safeParse(value);
  if (result.success) return result.data;
  const lines = result.error.issues.map((issue) => {
    const [unknown = ""] = issue.code === "unrecognized_keys" ? issue.keys : [];
    return `  ${label(issue.path, unknown)}: ${issue.message}`;
  });
  throw new ConfigError(`${source} cannot be used; correct:\n${lines.join("\n")}`);
}

/** Creates the schema of a table; an unknown key is an error that names the nearest known one. */
export function strictTable<Shape extends z.ZodRawShape>(shape: Shape) {
  return z.strictObject(shape, {
    error: ({ code, keys }) =>
      code === "unrecognized_keys" && Array.isArray(keys)
        ? keys.map((key) => unknownKey(String(key), Object.keys(shape))).join("; ")
        : undefined,
  });
}

function unknownKey(key: string, known: readonly string[]): string {
  return `unknown key "${key}", the nearest known one is "${closest(key, known)}"`;
}

const dotted = (path: readonly PropertyKey[]) => (path.length === 0 ? "top level" : path.map(String).join("."));
