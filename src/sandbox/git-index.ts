import { readFileSync } from "node:fs";
import { pathsOfIndex } from "../core/tracked-files.ts";
import { reachableStats } from "./git-directories.ts";

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
