import { readFileSync } from "node:fs";
import { dirname, resolve } from "node:path";
import { parse, TomlError } from "smol-toml";
import { z } from "zod";

/** A bad setting; the message says which one, where it was read, why it is refused and what to do. */
export class ConfigError extends Error {
  override name = "ConfigError";
}

/** A permission table as written: its rules hold in the order of its keys. */
export type RawRules = Readonly<Record<string, unknown>>;

const day = 86_400_000;
const listen = z.string().regex(/^(\[[0-9a-fA-F:.]+\]|[^\s:[\]]+):\d{1,5}$/, {
  error: 'write it as HOST:PORT, such as "127.0.0.1:7420" or "[::1]:7420"',
});
const milliseconds = (max: number) => z.int().min(1).max(max);
const count = z.int().min(1).max(1_000_000);
const bytes = (max: number) => z.int().min(1024).max(max);

/** What the file, the environment and the flags may all set. */
const scalars = {
  listen: listen.optional(),
  data: z.string().min(1).optional(),
  store: z
    .string()
    .regex(/^(sqlite$|rediss?:\/\/|redis\+(unix|sentinel|cluster):\/\/)/, {
      error:
        'write "sqlite", or a URL that begins with redis://, rediss://, redis+unix://, redis+sentinel:// or redis+cluster://',
    })
    .optional(),
  tls_cert: z.string().min(1).optional(),
  tls_key: z.string().min(1).optional(),
  tls_client_ca: z.string().min(1).optional(),
  unattended: z.enum(["wait", "deny"]).optional(),
  ask_ms: milliseconds(day).optional(),
  lease_ms: z.int().min(1000).max(600_000).optional(),
  drain_ms: z.int().min(0).max(3_600_000).optional(),
  log_level: z.enum(["debug", "info", "warn", "error"]).optional(),
  insecure_no_auth: z.boolean().optional(),
  insecure_listen: z.boolean().optional(),
};

const rules = z.record(z.string(), z.unknown()).superRefine((raw, context) => {
  for (const [path, key] of keysWithoutPlace(raw, [])) {
    context.addIssue({ code: "custom", path, message: `a key of digits loses its place; write ${key}* instead` });
  }
});

const name = z.string().regex(/^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$/, {
  error: "a name is 1 to 64 letters, digits, dots, dashes or underscores",
});

const token = strictTable({
  id: name,
  roles: z.array(z.enum(["caller", "approver", "watcher", "admin"])).min(1),
  agents: z.array(z.string().min(1)).optional(),
  value: z.string().optional(),
  file: z.string().optional(),
  env: z.string().optional(),
}).refine(({ value, file, env }) => [value, file, env].filter((source) => source !== undefined).length === 1, {
  error: "a token has exactly one of value, file and env",
});

const origin = z.string().refine((text) => URL.canParse(text) && new URL(text).origin === text, {
  error: 'an origin is scheme, host and port without a path, such as "https://console.example"',
});

const settings = strictTable({
  ...scalars,
  hosts: z.array(z.string().min(1)).optional(),
  origins: z.array(origin).optional(),
  workspace: z.record(name, z.string().min(1)).optional(),
  agent: z.record(name, strictTable({ description: z.string().optional(), permission: rules.optional() })).optional(),
  permission: rules.optional(),
  token: z.array(token).optional(),
  limits: strictTable({
    request_bytes: bytes(67_108_864).optional(),
    input_bytes: bytes(67_108_864).optional(),
    output_bytes: bytes(1_099_511_627_776).optional(),
    timeout_ms: milliseconds(3_600_000).optional(),
    max_timeout_ms: milliseconds(day).optional(),
    open_asks: count.optional(),
    running_calls: count.optional(),
  }).optional(),
});

/** What `toolgate.toml` may hold; paths are absolute once it was read. */
export type Settings = z.output<typeof settings>;

const scalarSettings = z.strictObject(scalars);

/** The settings that environment and flags may set too. */
export type Scalars = z.output<typeof scalarSettings>;

/** Their names. */
export const scalarKeys = Object.keys(scalars);

/** Reads a configuration file; undefined if there is none. Relative paths in it are meant from its own folder. */
export function readSettings(file: string, home: string): Settings | undefined {
  const text = readIfThere(file);
  if (text === undefined) return undefined;
  const read = check(settings, parseToml(text, file), file, dotted);
  const absolute = (path: string) => resolve(dirname(file), path.replace(/^~(?=\/|$)/, home));
  return {
    ...withPaths(read, absolute),
    ...(read.workspace === undefined ? {} : { workspace: mapValues(read.workspace, absolute) }),
    ...(read.token === undefined
      ? {}
      : { token: read.token.map((one) => (one.file === undefined ? one : { ...one, file: absolute(one.file) })) }),
  };
}

/** Checks what was not read from a file; `label` makes the name by which an error calls a setting. */
export function checkScalars(value: unknown, source: string, label: (key: string) => string): Scalars {
  const set = check(scalarSettings, value, source, ([key]) => label(String(key)));
  // What is not set must not hide what the next source sets.
  return Object.fromEntries(Object.entries(set).filter(([, value]) => value !== undefined));
}

/** Makes the paths among the settings absolute. */
export function withPaths<T extends Scalars>(set: T, absolute: (path: string) => string): T {
  const paths = (["data", "tls_cert", "tls_key", "tls_client_ca"] as const).flatMap((key) => {
    const path = set[key];
    return path === undefined ? [] : [[key, absolute(path)] as const];
  });
  return { ...set, ...Object.fromEntries(paths) };
}

function check<T>(
  schema: z.ZodType<T>,
  value: unknown,
  source: string,
  label: (path: readonly PropertyKey[]) => string,
): T {
  const result = schema.safeParse(value);
  if (result.success) return result.data;
  const lines = result.error.issues.map(({ path, message }) => `  ${label(path)}: ${message}`);
  throw new ConfigError(`${source} cannot be used; correct:\n${lines.join("\n")}`);
}

function readIfThere(file: string): string | undefined {
  try {
    return readFileSync(file, "utf8");
  } catch (cause) {
    if (cause instanceof Error && "code" in cause && cause.code === "ENOENT") return undefined;
    throw new ConfigError(`${file} cannot be read; correct its rights, or name another file with --config`, { cause });
  }
}

function parseToml(text: string, source: string): unknown {
  try {
    return parse(text);
  } catch (error) {
    if (!(error instanceof TomlError)) throw error;
    // Only the first line of its message, and no cause: the rest quotes the file, which may hold tokens.
    const [what] = error.message.split("\n");
    throw new ConfigError(`${source}, line ${error.line}, column ${error.column}: ${what}`);
  }
}

/** A table in which an unknown key is an error that names the nearest known one. */
function strictTable<Shape extends z.ZodRawShape>(shape: Shape) {
  return z.strictObject(shape, {
    error: ({ code, keys }) =>
      code === "unrecognized_keys" && Array.isArray(keys)
        ? keys.map((key) => unknownKey(String(key), Object.keys(shape))).join("; ")
        : undefined,
  });
}

function unknownKey(key: string, known: readonly string[]): string {
  const [nearest] = known.toSorted((a, b) => distance(key, a) - distance(key, b));
  return `unknown key "${key}", the nearest known one is "${nearest}"`;
}

/** How many letters must be inserted, removed or replaced to make one word of the other. */
function distance(from: string, to: string): number {
  let row = Array.from({ length: to.length + 1 }, (_, index) => index);
  for (const [i, letter] of [...from].entries()) {
    const next = [i + 1];
    for (const [j, other] of [...to].entries()) {
      const replaced = (row[j] ?? 0) + (letter === other ? 0 : 1);
      next.push(Math.min(replaced, (row[j + 1] ?? 0) + 1, (next[j] ?? 0) + 1));
    }
    row = next;
  }
  return row[to.length] ?? 0;
}

/** JavaScript moves keys that look like array indexes to the front of an object: as a rule they would decide wrongly. */
function keysWithoutPlace(raw: RawRules, path: readonly string[]): [string[], string][] {
  return Object.entries(raw).flatMap(([key, value]) => {
    const here = [...path, key];
    if (/^(0|[1-9]\d{0,9})$/.test(key)) return [[here, key] satisfies [string[], string]];
    return isTable(value) ? keysWithoutPlace(value, here) : [];
  });
}

function isTable(value: unknown): value is RawRules {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

const dotted = (path: readonly PropertyKey[]) => (path.length === 0 ? "top level" : path.map(String).join("."));

const mapValues = (table: Readonly<Record<string, string>>, change: (value: string) => string) =>
  Object.fromEntries(Object.entries(table).map(([key, value]) => [key, change(value)]));
