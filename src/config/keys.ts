import { closest } from "fastest-levenshtein";
import { z } from "zod";
import { ConfigError, readToml, type Toml } from "./toml.ts";

/** Facts about a key of the configuration that its schema does not have. */
export interface KeyFacts {
  /** Meaning of the key, for `--help` and the table of the documentation. */
  readonly help: string;
  /** Page and section that say more, below docs/. */
  readonly see?: string;
  /** The value without the setting, in words, if the schema has none that one could write. */
  readonly without?: string;
  /** The unit, if the name of the key does not end with it. */
  readonly unit?: string;
  /** The option of `toolgate serve`, as commander reads it. */
  readonly flag?: string;
  /** The entry of the table that flag and variable set. */
  readonly entry?: string;
  /** The environment variable. */
  readonly variable?: string;
}

/** A key, with its place in the configuration. `NAME` and `[]` stand for the entries of tables and lists. */
export interface ConfigKey extends KeyFacts {
  readonly path: readonly string[];
  readonly schema: z.ZodType;
}

const registered = z.registry<KeyFacts>();
const places = z.registry<{ readonly isProgram: boolean }>();

/** Declares a key. */
export function key<Schema extends z.ZodType>(
  schema: Schema,
  help: string,
  facts: Omit<KeyFacts, "help"> = {},
): Schema {
  registered.add(schema, { help, ...facts });
  return schema;
}

/** Lists the keys of a table and of the tables in it. */
export function keysOf(schema: z.ZodType, path: readonly string[] = []): ConfigKey[] {
  const facts = registered.get(schema);
  if (facts) return [{ ...facts, path, schema }];
  const bare = withoutWrappers(schema);
  if (bare instanceof z.ZodRecord) return keysOf(bare.valueType as z.ZodType, [...path, "NAME"]);
  if (bare instanceof z.ZodArray) return keysOf(bare.element as z.ZodType, [...path, "[]"]);
  if (!(bare instanceof z.ZodObject))
    throw new TypeError(`the key ${path.join(".")} has no help; declare it with key()`);
  const { catchall } = bare.def;
  const others = catchall === undefined || catchall instanceof z.ZodNever ? [] : [["NAME", catchall]];
  return [...Object.entries(bare.shape), ...others].flatMap(([name, inner]) =>
    keysOf(inner as z.ZodType, [...path, name as string]),
  );
}

/** Returns the value of a key without a setting, in Markdown; undefined for nothing. */
export function defaultOf({ without, schema }: Pick<ConfigKey, "without" | "schema">): string | undefined {
  if (without !== undefined) return without;
  const value: unknown =
    schema instanceof z.ZodDefault || schema instanceof z.ZodPrefault ? schema.def.defaultValue : undefined;
  if (value === undefined || (typeof value === "object" && Object.keys(value ?? {}).length === 0)) return undefined;
  if (typeof value === "number") return value.toLocaleString("en-US");
  return `\`${typeof value === "string" ? value : JSON.stringify(value)}\``;
}

/** Returns the schema inside of what makes it optional or gives it a default. */
export function withoutWrappers(schema: z.ZodType): z.ZodType {
  if (schema instanceof z.ZodOptional || schema instanceof z.ZodDefault || schema instanceof z.ZodPrefault)
    return withoutWrappers(schema.unwrap() as z.ZodType);
  return schema;
}

/** Declares a path; a relative one starts at the directory of its source. */
export const path = () => z.string().min(1).register(places, { isProgram: false });
/** Declares a program: a path, or a name without a slash, which is looked up in PATH. */
export const program = () => z.string().min(1).register(places, { isProgram: true });

/** Makes the paths in a value absolute. */
export function withPaths<Value>(schema: z.ZodType, value: Value, absolute: (path: string) => string): Value {
  const resolved = (inner: unknown, part: unknown): unknown => {
    const bare = withoutWrappers(inner as z.ZodType);
    const place = places.get(bare);
    if (typeof part === "string") return place && (!place.isProgram || part.includes("/")) ? absolute(part) : part;
    if (Array.isArray(part) && bare instanceof z.ZodArray) return part.map((each) => resolved(bare.element, each));
    if (typeof part !== "object" || part === null) return part;
    const entries = Object.entries(part);
    if (bare instanceof z.ZodRecord)
      return Object.fromEntries(entries.map(([name, each]) => [name, resolved(bare.valueType, each)]));
    if (!(bare instanceof z.ZodObject)) return part;
    const { catchall } = bare.def;
    return Object.fromEntries(entries.map(([name, each]) => [name, resolved(bare.shape[name] ?? catchall, each)]));
  };
  return resolved(schema, value) as Value;
}

type Camel<Key> = Key extends `${infer First}_${infer Rest}` ? `${First}${Capitalize<Camel<Rest>>}` : Key;

/** A table with the names that the code uses. */
export type CamelKeys<Table> = { readonly [Key in keyof Table as Camel<Key>]: Exclude<Table[Key], undefined> };

/** Renames `lease_ms` to `leaseMs`, and so on; the tables inside stay as they are. */
export function camelKeys<Table extends object>(table: Table): CamelKeys<Table> {
  const entries = Object.entries(table).filter(([, value]) => value !== undefined);
  return Object.fromEntries(entries.map(([name, value]) => [camelName(name), value])) as CamelKeys<Table>;
}

/** Returns `tlsCert` for `tls_cert` and for `--tls-cert <file>`. */
export const camelName = (name: string): string =>
  name.replace(/^--|[ ].*/g, "").replace(/[_-](\w)/g, (_, letter: string) => letter.toUpperCase());

/** Parses TOML and checks it against a schema; the error lists the problems, each with its line. */
export function checkToml<T>(
  schema: z.ZodType<T>,
  text: string,
  source: string,
  partOf = (value: unknown) => value,
): { value: T } & Pick<Toml, "lineOf"> {
  const { value, lineOf } = readToml(text, source);
  const label = (place: readonly PropertyKey[], unknown: string) => {
    const line = lineOf(unknown === "" ? place : [...place, unknown]);
    return `${line === undefined ? "" : `line ${line}: `}${place.length === 0 ? "top level" : place.map(String).join(".")}`;
  };
  return { value: check(schema, partOf(value), source, label), lineOf };
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
  const { issues } = result.error;
  const lines = issues.slice(0, maxIssues).map((issue) => {
    const [unknown = ""] = issue.code === "unrecognized_keys" ? issue.keys : [];
    return `  ${label(issue.path, unknown)}: ${issue.message}`;
  });
  if (issues.length > maxIssues) lines.push(`  … and ${issues.length - maxIssues} more`);
  throw new ConfigError(`${source} cannot be used; correct:\n${lines.join("\n")}`);
}

/** Each takes a search for its line. */
const maxIssues = 20;

/** Creates the schema of a table; an unknown key is an error that names the nearest known one. */
export function strictTable<Shape extends z.ZodRawShape>(shape: Shape) {
  return z.strictObject(shape, {
    error: ({ code, keys }) =>
      code === "unrecognized_keys" && Array.isArray(keys)
        ? keys.map((name) => unknownKey(String(name), Object.keys(shape))).join("; ")
        : undefined,
  });
}

/** Says that a key is unknown, and which one may be meant. */
export function unknownKey(name: string, known: readonly string[]): string {
  return `unknown key "${name}", the nearest known one is "${closest(name, known)}"`;
}
