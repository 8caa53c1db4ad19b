import { lstatSync, readFileSync } from "node:fs";
import { dirname, join, relative, resolve } from "node:path";
import { pathsOfIndex } from "../core/tracked-files.ts";

interface KnownIndex {
  readonly changed: bigint;
  readonly size: bigint;
  /** Undefined if the index cannot be read, so that any file may be tracked. */
  readonly paths: ReadonlySet<string> | undefined;
}

/** Creates the check if git tracks a file below a directory. It reads an index again only after a change. */
export function createGitTracking(): (directory: string) => boolean {
  const known = new Map<string, KnownIndex>();

  function pathsOf(index: string): ReadonlySet<string> | undefined {
    const stats = lstatSync(index, { bigint: true, throwIfNoEntry: false });
    if (stats === undefined) return none;
    const before = known.get(index);
    if (before?.changed === stats.mtimeNs && before.size === stats.size) return before.paths;
    const paths = readIndex(index);
    if (known.size >= maxIndexes) known.clear();
    known.set(index, { changed: stats.mtimeNs, size: stats.size, paths });
    return paths;
  }

  return (directory) => {
    for (let top = directory; ; top = dirname(top)) {
      const index = indexOf(join(top, ".git"));
      if (index !== undefined) {
        const paths = pathsOf(index);
        const below = `${relative(top, directory)}/`;
        return paths === undefined || below === "/" || [...paths].some((path) => path.startsWith(below));
      }
      if (top === "/") return false;
    }
  };
}

/** Returns the index of the repository with this `.git`, which is a directory or a file that names one; undefined without. */
function indexOf(git: string): string | undefined {
  const stats = lstatSync(git, { throwIfNoEntry: false });
  if (stats === undefined) return undefined;
  if (stats.isDirectory()) return join(git, "index");
  const [, directory = ""] = /^gitdir: (.*)/.exec(readText(git)) ?? [];
  return join(resolve(dirname(git), directory), "index");
}

function readText(path: string): string {
  try {
    return readFileSync(path, "utf8");
  } catch {
    return "";
  }
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
