import { readFileSync } from "node:fs";
import { createRequire, findPackageJSON } from "node:module";
import { dirname, isAbsolute, join, resolve } from "node:path";
import { z } from "zod";
import { readIfExists } from "../core/read-files.ts";
import { type ConfigKey, camelName, check, checkToml, keysOf, unknownKey, withoutWrappers, withPaths } from "./keys.ts";
import { configSchema, type Settings, serveOptions } from "./schema.ts";
import { ConfigError, type Toml } from "./toml.ts";

/** The options of `toolgate serve` in camel case; each overrides the environment, which overrides the file. */
export interface Flags {
  config?: string;
  newStore?: boolean;
  readonly [flag: string]: string | boolean | undefined;
}

type Env = Readonly<Record<string, string | undefined>>;

const keys = keysOf(configSchema);

/** Reads a configuration file; undefined if it does not exist. Relative paths in it start at its own directory. */
export function readSettings(file: string, home: string): { settings: Settings; lineOf: Toml["lineOf"] } | undefined {
  const text = readIfThere(file);
  if (text === undefined) return undefined;
  const { value, lineOf } = checkToml(configSchema, text, file);
  const absolute = (path: string) => resolve(dirname(file), path.replace(/^~(?=\/|$)/, home));
  const settings = withPaths(configSchema, value, absolute);
  return { settings: { ...settings, plugin: value.plugin.map((named) => pluginOf(named, file, absolute)) }, lineOf };
}

/** Returns the settings of no file. */
export const defaultSettings = (): Settings => configSchema.parse({});

/** Puts the environment, then the flags over the settings of the file; relative paths in them start at `directory`. */
export function overrideSettings(settings: Settings, flags: Flags, env: Env, directory: string): Settings {
  const known = serveOptions.map(({ flag }) => camelName(flag));
  const wrong = Object.keys(flags).find((name) => !known.includes(name));
  if (wrong !== undefined) throw new ConfigError(`the command line cannot be used: ${unknownKey(wrong, known)}`);
  const fromEnvironment = override(settings, directory, "the environment", ({ variable, schema }) =>
    variable === undefined ? undefined : { label: variable, value: fromText(schema, env[variable]) },
  );
  return override(fromEnvironment, directory, "the command line", ({ flag }) =>
    flag === undefined ? undefined : { label: flag.replace(/ .*/, ""), value: flags[camelName(flag)] },
  );
}

function override(
  settings: Settings,
  directory: string,
  source: string,
  find: (key: ConfigKey) => { label: string; value: unknown } | undefined,
): Settings {
  const set = keys.flatMap((key) => {
    const { label, value } = find(key) ?? {};
    return label === undefined || value === undefined ? [] : [{ key, label, value }];
  });
  const schema = z.strictObject(Object.fromEntries(set.map(({ key, label }) => [label, schemaOf(key)])));
  const raw = Object.fromEntries(set.map(({ label, value }) => [label, value]));
  const checked = check(schema, raw, source, ([label]) => String(label));
  const values: Readonly<Record<string, unknown>> = withPaths(schema, checked, (path) => resolve(directory, path));
  return set.reduce(
    (merged, { key: { path, entry }, label }) =>
      setAt(merged, entry === undefined ? path : [...path, entry], values[label]) as Settings,
    settings,
  );
}

function schemaOf({ schema, entry }: ConfigKey): z.ZodType {
  const bare = withoutWrappers(schema);
  return entry !== undefined && bare instanceof z.ZodRecord ? (bare.valueType as z.ZodType) : schema;
}

function setAt(table: object | undefined, [name = "", ...rest]: readonly string[], value: unknown): object {
  const inner: unknown = Object.entries(table ?? {}).find(([key]) => key === name)?.[1];
  return { ...table, [name]: rest.length === 0 ? value : setAt(inner as object | undefined, rest, value) };
}

function fromText(schema: z.ZodType, text: string | undefined): unknown {
  if (text === undefined || text === "") return undefined;
  const bare = withoutWrappers(schema);
  if (bare instanceof z.ZodNumber) return Number(text);
  return bare instanceof z.ZodBoolean && /^(true|false)$/.test(text) ? text === "true" : text;
}

/** Reads the text of a file; undefined if it does not exist. */
export function readIfThere(file: string): string | undefined {
  try {
    return readIfExists(file);
  } catch (cause) {
    throw new ConfigError(`${file} cannot be read; correct its permissions, or name another file with --config`, {
      cause,
    });
  }
}

/** Returns a plugin with the path of its file. An optional one may be missing. */
function pluginOf(
  named: Settings["plugin"][number],
  configuration: string,
  absolute: (path: string) => string,
): { path: string; optional: boolean } {
  const { path, optional = false } = typeof named === "string" ? { path: named } : named;
  try {
    return { path: pluginFile(path, configuration, absolute), optional };
  } catch (cause) {
    if (!optional) throw cause;
    return { path: absolute(path), optional };
  }
}

/**
 * Returns the file of a plugin that the configuration names: by a path (it begins with `.`, `/` or `~`, or ends like a
 * script), relative to the configuration's directory, or by the name of a package that is installed there.
 */
function pluginFile(named: string, configuration: string, absolute: (path: string) => string): string {
  if (/^[./~]|\.[cm]?[jt]s$/.test(named) || isAbsolute(named)) return absolute(named);
  try {
    return createRequire(configuration).resolve(named);
  } catch (cause) {
    const file = moduleOnly(named, configuration);
    if (file !== undefined) return file;
    throw new ConfigError(
      `${configuration}: the plugin ${named} is not a path, and no package of that name is installed in ${dirname(configuration)}; install it there (npm install ${named}), or write ./${named} for a file`,
      { cause },
    );
  }
}

const entry = z.union([z.string(), z.object({ import: z.unknown().optional(), default: z.unknown().optional() })]);

/** Returns the entry of a package that supports only `import`, which `require` does not resolve. */
function moduleOnly(named: string, configuration: string): string | undefined {
  const description = packageOf(named, configuration);
  if (description === undefined) return undefined;
  const { exports } = JSON.parse(readFileSync(description, "utf8"));
  for (let found: unknown = exports?.["."] ?? exports; ; ) {
    const read = entry.safeParse(found);
    if (!read.success) return undefined;
    if (typeof read.data === "string") return join(dirname(description), read.data);
    found = read.data.import ?? read.data.default;
  }
}

function packageOf(named: string, configuration: string): string | undefined {
  try {
    return findPackageJSON(named, configuration);
  } catch {
    return undefined;
  }
}
