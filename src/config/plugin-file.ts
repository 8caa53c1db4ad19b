import { readFileSync } from "node:fs";
import { createRequire, findPackageJSON } from "node:module";
import { dirname, isAbsolute, join } from "node:path";
import * as z from "zod";
import { ConfigError } from "./errors.ts";

/**
 * Returns the file of a plugin that the configuration names: by a path (it begins with `.`, `/` or `~`, or ends like a
 * script), relative to the configuration's directory, or by the name of a package that is installed there.
 */
export function pluginFile(named: string, configuration: string, absolute: (path: string) => string): string {
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

/** Returns a plugin with the path of its file. An optional one may be missing. */
export function configuredPlugin(
  named: string | { path: string; optional?: boolean | undefined },
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
