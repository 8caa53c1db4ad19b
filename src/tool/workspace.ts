import { lstat as lstatWith, type Stats } from "node:fs";
import { readlink, realpath, stat } from "node:fs/promises";
import { homedir } from "node:os";
import { basename, dirname, isAbsolute, join, relative } from "node:path";
import { promisify } from "node:util";
import * as z from "zod";
import { ToolFailure } from "./errors.ts";

/** A path after symlinks and `..` were looked through. */
export interface ResolvedPath {
  /** The canonical absolute path: every existing part is resolved; what does not exist yet is appended as written. */
  absolute: string;
  /** What asks show and rules meet: relative to the workspace inside it, absolute outside. */
  pattern: string;
  /** Whether it lies outside the workspace. */
  external: boolean;
  /** Whether it is a directory that exists. */
  isDirectory: boolean;
  /** Whether it is a file with other names (hard links), which rules about names do not see. */
  otherNames: boolean;
  /** Whether it is a pipe, a socket or a device. */
  isSpecial: boolean;
}

/** The directory in which an agent works. */
export interface Workspace {
  /** `NAME` or `NAME/directory`. */
  name: string;
  /** Its canonical absolute path. */
  directory: string;
  /** Resolves a path as a tool got it: relative ones against the workspace, `~` as home. It may lie outside. */
  resolve(path: string): Promise<ResolvedPath>;
}

/** Opens the workspace in a directory that exists. */
export async function openWorkspace(name: string, directory: string): Promise<Workspace> {
  const root = await realpath(directory).catch((cause: unknown) => {
    throw new Error(
      `workspace ${name}: the directory ${directory} cannot be opened; create it or configure another one`,
      {
        cause,
      },
    );
  });
  if (!(await stat(root)).isDirectory()) {
    throw new Error(`workspace ${name}: ${directory} is not a directory; configure a directory`);
  }
  return {
    name,
    directory: root,
    async resolve(path) {
      if (path.includes("\0")) throw new ToolFailure("A path cannot contain a NUL character. Remove it.");
      const expanded = path === "~" || path.startsWith("~/") ? join(homedir(), path.slice(1)) : path;
      const found = await canonical(isAbsolute(expanded) ? "/" : root, expanded);
      const inside = relative(root, found.absolute);
      const external = inside === ".." || inside.startsWith("../");
      return { ...found, pattern: external ? found.absolute : inside || ".", external };
    },
  };
}

/** A path as tools take it. */
export const filePath = z
  .string()
  .min(1)
  .refine((path) => !path.includes("\0"), "contains a NUL character; remove it");

const maxLinks = 40;
const maxAhead = 32;
/** Half of what `lstat` of fs/promises takes, and every call looks at paths. */
const lstat = promisify(lstatWith);

/** Goes from a canonical directory along a path, part by part as the kernel does, so that `..` behind a link leaves the link's target. */
async function canonical(from: string, path: string): Promise<Omit<ResolvedPath, "pattern" | "external">> {
  const ahead = path.split("/").reverse();
  const looks = lookAhead(from, path);
  let at = from;
  let found: Stats | undefined;
  let links = 0;
  while (ahead.length > 0) {
    const part = ahead.pop();
    if (part === undefined || part === "" || part === ".") continue;
    const next = part === ".." ? dirname(at) : join(at, part);
    const stats = await (looks.get(next) ?? look(next, path));
    if (!stats?.isSymbolicLink()) {
      at = next;
      found = stats;
      continue;
    }
    links += 1;
    if (links > maxLinks) throw new ToolFailure(`Cannot resolve ${path}: too many symbolic links at ${basename(next)}`);
    const target = await readlink(next);
    ahead.push(...target.split("/").reverse());
    if (!isAbsolute(target)) continue;
    at = "/";
    found = undefined;
  }
  // Not a part of it was looked at: it is the directory where it began.
  found ??= await look(at, path);
  const isDirectory = found?.isDirectory() ?? false;
  return {
    absolute: at,
    isDirectory,
    otherNames: found !== undefined && !isDirectory && found.nlink > 1,
    isSpecial: found !== undefined && !isDirectory && !found.isFile(),
  };
}

/** Looks at all parts of a path at once, as they are if none is a link: each look waits for a thread, and paths are long. */
function lookAhead(from: string, path: string): ReadonlyMap<string, Promise<Stats | undefined>> {
  const looks = new Map<string, Promise<Stats | undefined>>();
  let at = from;
  for (const part of path.split("/")) {
    if (part === ".." || looks.size === maxAhead) break;
    if (part === "" || part === ".") continue;
    at = join(at, part);
    const stats = look(at, path);
    // What fails matters only where the way leads.
    stats.catch(() => undefined);
    looks.set(at, stats);
  }
  return looks;
}

async function look(next: string, path: string) {
  try {
    return await lstat(next);
  } catch (cause) {
    const code = cause instanceof Error && "code" in cause ? cause.code : undefined;
    // Below a file, or below what is missing, there is nothing to look through.
    if (code === "ENOENT" || code === "ENOTDIR") return undefined;
    throw new ToolFailure(`Cannot resolve ${path}: ${next} cannot be looked at (${String(code)})`, { cause });
  }
}
