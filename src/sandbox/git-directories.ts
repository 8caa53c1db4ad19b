import { type BigIntStats, existsSync, lstatSync, readdirSync, readFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { readText } from "../core/read-files.ts";
import { pathsOfIndex } from "../core/tracked-files.ts";
import type { LayerShare } from "./layers.ts";

/** The directories of a repository: the private one of its work tree, and the one that linked work trees share. */
export interface GitDirectories {
  own: string;
  common: string;
}

/** Finds the directories by the `.git` of a top directory, which is a directory or a file that names one; undefined without. */
export function gitDirectoriesOf(top: string): GitDirectories | undefined {
  const git = join(top, ".git");
  const stats = reachableStats(git);
  if (stats === undefined) return undefined;
  if (stats === "unreachable" || stats.isDirectory()) return { own: git, common: git };
  const [, directory = ""] = /^gitdir: (.*)/.exec(readText(git)) ?? [];
  const own = resolve(top, directory);
  return { own, common: resolve(own, readText(join(own, "commondir")).trim()) };
}

/** Maximum number of files with refs that are compared. */
const maxRefs = 20_000;

/** Describes the state of a repository's refs: equal as long as no commit is added. Undefined if there are too many refs. */
export function refsStateOf({ own, common }: GitDirectories): string | undefined {
  const files = [join(own, "HEAD"), join(own, "logs/HEAD"), ...sharedFiles.map((name) => join(common, name))];
  const ahead = [join(common, "refs"), join(common, "reftable")];
  for (let at = ahead.pop(); at !== undefined; at = ahead.pop()) {
    for (const entry of listed(at)) (entry.isDirectory() ? ahead : files).push(join(at, entry.name));
    if (files.length > maxRefs) return undefined;
  }
  return files.map(stateOf).join("\n");
}

const sharedFiles = ["packed-refs", "logs/refs/stash"];

function stateOf(file: string): string {
  const stats = reachableStats(file);
  if (stats === "unreachable") return `${file} ${stats}`;
  return stats === undefined ? "" : `${file} ${stats.ino} ${stats.mtimeNs} ${stats.size}`;
}

/** Returns the state of a file; undefined if there is none. A command can shut the directory above. */
export function reachableStats(path: string | Buffer): BigIntStats | "unreachable" | undefined {
  try {
    return lstatSync(path, { bigint: true, throwIfNoEntry: false });
  } catch {
    return "unreachable";
  }
}

function listed(directory: string) {
  try {
    return readdirSync(directory, { withFileTypes: true });
  } catch {
    return [];
  }
}

/** Returns the path inside the git directory to which a path belongs; undefined for other paths. */
export function pathInGitDirectory(path: string): string | undefined {
  const [, rest] = /^.*?\/\.git\/(.*)$/s.exec(path) ?? [];
  return rest;
}

/**
 * Checks if git takes commands from a file of its directory, or from the files of a directory there; `commondir` names another
 * directory with settings. The other files change with each commit, so commands may write them.
 */
export function isGitCode(pathInside: string): boolean {
  return /^(?!(refs|logs|objects|lfs)\/)(.*\/)?(commondir|config|config\.worktree|info\/attributes|hooks(\/.*)?)$/s.test(
    pathInside,
  );
}

/** Checks if a directory holds the objects of a repository, of which no name says anything. */
export const isObjectStore = (path: string) => /\/\.git\/(.*\/)?objects$/s.test(path);

interface KnownIndex {
  readonly changed: bigint;
  readonly size: bigint;
  readonly paths: ReadonlySet<string> | undefined;
}

/** Reads the paths of an index of git; undefined if it cannot be read, so that any file may be tracked. */
export type ReadGitIndex = (index: string) => ReadonlySet<string> | undefined;

/** Creates the reader. It reads an index again only after a change. */
export function createGitIndexReader(): ReadGitIndex {
  const known = new Map<string, KnownIndex>();
  return (index) => {
    const stats = reachableStats(index);
    if (stats === undefined) return none;
    if (stats === "unreachable") return undefined;
    const before = known.get(index);
    if (before?.changed === stats.mtimeNs && before.size === stats.size) return before.paths;
    const paths = readIndex(index);
    if (known.size >= maxIndexes) known.clear();
    known.set(index, { changed: stats.mtimeNs, size: stats.size, paths });
    return paths;
  };
}

function readIndex(index: string): ReadonlySet<string> | undefined {
  try {
    return pathsOfIndex(readFileSync(index));
  } catch {
    return undefined;
  }
}

const none: ReadonlySet<string> = new Set();
const maxIndexes = 100;

/** Paths that the mounts of a command have to cover, with the identity that they had when the mounts were planned. */
export interface ExpectedMounts {
  readonly identities: ReadonlyMap<string, string>;
  /** Files that the mask file is mounted over, and its identity. */
  readonly masked: readonly string[];
  readonly maskIdentity: string | undefined;
  /** Directories that are replaced by a new one. */
  readonly emptied: readonly string[];
  /** Arguments of bubblewrap, some of which mount paths over themselves. */
  readonly args: NonNullable<LayerShare["args"]>;
  /** Directories in which the command works. */
  readonly roots: readonly string[];
}

/**
 * Checks the mounts of a command that waits for its start. A program that renames files meanwhile could have led a mount to another
 * one. Returns the path that is not covered; undefined if all are.
 */
export function uncoveredPath(pid: number, expected: ExpectedMounts): string | undefined {
  const { identities, masked, maskIdentity, emptied, args, roots } = expected;
  const inside = (path: string) => identityOf(`/proc/${pid}/root${path}`);
  // Where a file was gone for a moment, bubblewrap made another one to mount on. That is gone once the file is back, so the host
  // is read before the inside.
  const isThere = (path: string) => identityOf(path) === identities.get(path);
  const isEmptied = (path: string) => {
    const [device] = inside(path)?.split(":") ?? [];
    return device !== undefined && device !== identities.get(path)?.split(":")[0];
  };
  const bound = boundPaths(args).filter((path) => identities.has(path));
  const missed =
    masked.find((path) => !isThere(path) || inside(path) !== maskIdentity) ??
    emptied.find((path) => !isThere(path) || !isEmptied(path)) ??
    [...bound, ...roots].find((path) => identities.has(path) && inside(path) !== identities.get(path));
  if (missed !== undefined) return missed;
  const mounted = mountPointsOf(pid);
  return [...masked, ...emptied, ...bound].find((path) => !mounted.has(path));
}

/** Returns the identity of a file or directory as text; undefined if there is none. */
export function identityOf(path: string): string | undefined {
  const stats = reachableStats(path);
  return stats === undefined || stats === "unreachable" ? undefined : `${stats.dev}:${stats.ino}`;
}

/** Lists the paths that are mounted over themselves. */
function boundPaths({ directories = [], pins = [], readOnly = [] }: ExpectedMounts["args"]): string[] {
  return [directories, pins, readOnly].flatMap((list) =>
    list.filter((path, i) => path === list[i + 1] && /^--(ro-)?bind(-try)?$/.test(list[i - 1] ?? "")),
  );
}

/**
 * Places in /proc by which a process of the user 0 changes the machine: it needs no capability for most of them. bubblewrap covers
 * the others.
 */
export const kernelSwitches = ["sys", "sysrq-trigger", "fs", "acpi", "scsi"].map((name) => `/proc/${name}`);

/** Returns the reason why a command that waits for its start must not: a place in /proc that it could write to. */
export function writableSwitch(pid: number): string | undefined {
  const mounted = mountPointsOf(pid);
  const path = kernelSwitches.find((place) => existsSync(place) && !mounted.get(place)?.split(",").includes("ro"));
  return path && `nothing was run, since ${path} is not read-only in the sandbox`;
}

/** Reads where a process has mounts, as they are called now, with their options: a mount goes with the directory that it is in. */
function mountPointsOf(pid: number): ReadonlyMap<string, string> {
  const lines = readFileSync(`/proc/${pid}/mountinfo`, "utf8").split("\n");
  return new Map(
    lines.map((line) => {
      const [, , , , path = "", options = ""] = line.split(" ");
      return [unescaped(path), options];
    }),
  );
}

const unescaped = (path: string) =>
  Buffer.from(
    path.replace(/\\([0-7]{3})/g, (_, digits: string) => String.fromCharCode(Number.parseInt(digits, 8))),
    "utf8",
  ).toString();
