import { type BigIntStats, lstatSync, readdirSync, readFileSync } from "node:fs";
import { join, resolve } from "node:path";

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

function readText(path: string): string {
  try {
    return readFileSync(path, "utf8");
  } catch {
    return "";
  }
}
