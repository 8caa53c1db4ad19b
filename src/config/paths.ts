import { lstatSync, mkdirSync, readFileSync, realpathSync, statSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import { isWithin } from "../core/paths.ts";
import { ConfigError } from "./toml.ts";

/** Reads a file of the operator. `what` names it in errors, and `next` says what to do. */
export function readOperatorFile(file: string, what: string, next = "create it, or correct the path"): string {
  try {
    return readFileSync(file, "utf8");
  } catch (cause) {
    throw new ConfigError(`${what} ${file} cannot be read; ${next}`, { cause });
  }
}

/** Resolves symlinks in an absolute path; parts that do not exist yet stay as written. */
export function canonicalPath(path: string): string {
  const entry = lstatSync(path, { throwIfNoEntry: false });
  if (entry !== undefined) return realpathSync(path);
  const parent = dirname(path);
  return parent === path ? path : join(canonicalPath(parent), basename(path));
}

/** Opens the workspace roots: each must be a directory. Returns name → canonical directory. */
export function openRoots(roots: Readonly<Record<string, string>>): ReadonlyMap<string, string> {
  return new Map(Object.entries(roots).map(([name, path]) => [name, openRoot(name, path)]));
}

function openRoot(name: string, path: string): string {
  if (statSync(path, { throwIfNoEntry: false })?.isDirectory()) return realpathSync(path);
  throw new ConfigError(`workspace "${name}" is ${path}, which is not a directory; create it or name another one`);
}

/** Refuses a data directory inside a workspace, and a workspace inside the data directory. */
export function checkDataDirectory(path: string, roots: ReadonlyMap<string, string>): void {
  const data = canonicalPath(path);
  for (const [name, root] of roots) {
    if (isWithin(data, root)) {
      throw new ConfigError(
        `the data directory ${data} lies inside the workspace "${name}" (${root}), so tools could change the store and read tokens; name the project's own directory: toolgate serve --workspace DIR, or move the data: toolgate serve --data DIR`,
      );
    }
    if (isWithin(root, data)) {
      throw new ConfigError(
        `the workspace "${name}" (${root}) lies inside the data directory ${data}, which no tool may touch; name another directory with --workspace DIR, or move the data with --data DIR`,
      );
    }
  }
}

/** Refuses a file of the operator inside a workspace, also through a link: tools could read or change it. */
export function checkOutside(path: string, what: string, roots: ReadonlyMap<string, string>): void {
  const places = [canonicalPath(path), join(canonicalPath(dirname(path)), basename(path))];
  for (const [name, root] of roots) {
    if (!places.some((place) => isWithin(place, root))) continue;
    throw new ConfigError(
      `${what} ${path} lies inside the workspace "${name}" (${root}), so tools could read or change it; move it out of the workspace, or name the project's own directory: toolgate serve --workspace DIR`,
    );
  }
}

/** Creates a directory that only this user may access, with its parents, and returns its canonical path. */
export function createPrivateDirectory(path: string): string {
  createDirectories(path);
  return realpathSync(path);
}

/** Creates a directory with its parents, one by one: Node's recursive call never returns below a file system such as /proc. */
function createDirectories(path: string): void {
  if (statSync(path, { throwIfNoEntry: false })?.isDirectory()) return;
  if (dirname(path) !== path) createDirectories(dirname(path));
  try {
    mkdirSync(path, { mode: 0o700 });
  } catch (cause) {
    if (statSync(path, { throwIfNoEntry: false })?.isDirectory()) return;
    const fact = cause instanceof Error ? cause.message : String(cause);
    throw new ConfigError(
      `the directory ${path} cannot be created (${fact}); create it, correct its permissions, or move the data with --data DIR`,
      { cause },
    );
  }
}
