import { lstatSync, type Stats } from "node:fs";
import { readlink, realpath, stat } from "node:fs/promises";
import { homedir } from "node:os";
import { basename, dirname, isAbsolute, join, relative, resolve } from "node:path";
import { setImmediate } from "node:timers/promises";
import * as z from "zod";
import type { Ask } from "../core/ask.ts";
import { ToolFailure } from "./errors.ts";
import { type OpenFile, openFile } from "./open-file.ts";
import { pathAsks, type ResolvedPath } from "./path-asks.ts";

/** A resolved path that is judged and opened as the same file. */
export interface PathHandle extends ResolvedPath {
  /** Makes the asks for this path; adds `external_directory` if it lies outside the workspace. */
  asks(permission: string, metadata?: Ask["metadata"]): Ask[];
  /** Opens the file or directory for reading, see `openFile`; undefined if there is none. Throws if it was replaced since. */
  open(): OpenFile | undefined;
}

/** A directory in which an agent works. */
export interface Workspace {
  /** `NAME` or `NAME/directory`. */
  name: string;
  /** Its canonical absolute path. */
  directory: string;
  /** Resolves a path from a tool's input: relative to the workspace, `~` as home. The result may lie outside. */
  resolve(path: string): Promise<PathHandle>;
}

/** Opens the workspace in an existing directory. */
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
      const resolved: ResolvedPath = { ...found, pattern: external ? found.absolute : inside || ".", external };
      return {
        ...resolved,
        asks: (permission, metadata) => pathAsks(permission, resolved, metadata),
        open: () => openFile(resolved),
      };
    },
  };
}

/** Schema of a path in the input of tools. */
export const filePath = z
  .string()
  .min(1)
  .refine((path) => !path.includes("\0"), "contains a NUL character; remove it");

const maxLinks = 40;
/** Parts of a path after which other work has a turn. */
const maxParts = 256;

/** Follows a path from a canonical directory part by part, as the kernel does, so that `..` after a link leaves the link's target. */
async function canonical(from: string, path: string): Promise<Omit<ResolvedPath, "pattern" | "external">> {
  const parts = path.split("/").reverse();
  let at = from;
  let found: Stats | undefined;
  let links = 0;
  for (let count = 1; parts.length > 0; count += 1) {
    if (count % maxParts === 0) await setImmediate();
    const part = parts.pop();
    if (part === undefined || part === "" || part === ".") continue;
    const next = part === ".." ? dirname(at) : join(at, part);
    const stats = statOf(next, path);
    if (!stats?.isSymbolicLink()) {
      at = next;
      found = stats;
      continue;
    }
    links += 1;
    if (links > maxLinks) throw new ToolFailure(`Cannot resolve ${path}: too many symbolic links at ${basename(next)}`);
    const target = await readlink(next);
    parts.push(...target.split("/").reverse());
    if (!isAbsolute(target)) continue;
    at = "/";
    found = undefined;
  }
  // An empty path is the directory where it started.
  found ??= statOf(at, path);
  const isDirectory = found?.isDirectory() ?? false;
  return {
    absolute: at,
    isDirectory,
    otherNames: found !== undefined && !isDirectory && found.nlink > 1,
    isSpecial: found !== undefined && !isDirectory && !found.isFile(),
  };
}

/** Reads a part of a path; undefined if there is none. Every call resolves paths, and a thread that does it takes ten times as long. */
function statOf(next: string, path: string): Stats | undefined {
  try {
    return lstatSync(next, { throwIfNoEntry: false });
  } catch (cause) {
    const code = cause instanceof Error && "code" in cause ? cause.code : undefined;
    // Nothing exists below a file.
    if (code === "ENOTDIR") return undefined;
    throw new ToolFailure(`Cannot resolve ${path}: ${next} cannot be read (${String(code)})`, { cause });
  }
}

/** Returns a workspace whose paths are judged as text, for a caller on another disk: no file is looked up, and none can be opened. */
export function lexicalWorkspace({ name, directory }: Pick<Workspace, "name" | "directory">): Workspace {
  return {
    name,
    directory,
    async resolve(path) {
      if (path.includes("\0")) throw new ToolFailure("A path cannot contain a NUL character. Remove it.");
      const absolute = isAbsolute(path) ? resolve(path) : resolve(directory, path);
      const inside = relative(directory, absolute);
      const external = inside === ".." || inside.startsWith("../");
      const resolved: ResolvedPath = {
        absolute,
        pattern: external ? absolute : inside || ".",
        external,
        isDirectory: false,
        otherNames: false,
        isSpecial: false,
      };
      return {
        ...resolved,
        asks: (permission, metadata) => pathAsks(permission, resolved, metadata),
        open: () => undefined,
      };
    },
  };
}

/** Returns the workspace by which asks of a tool are judged: a tool of a worker may run on another disk. */
export function judgedWorkspace({ remote }: { readonly remote: object | undefined }, workspace: Workspace): Workspace {
  return remote === undefined ? workspace : lexicalWorkspace(workspace);
}
