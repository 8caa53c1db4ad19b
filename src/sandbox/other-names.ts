import { type BigIntStats, lstatSync } from "node:fs";
import { isObjectStore } from "./git-directory.ts";
import type { Covered } from "./layers.ts";
import type { MountPlan } from "./mount-plan.ts";
import type { NameTree } from "./name-tree.ts";

/**
 * Looks at the files to mask once more: drops those that are gone, and adds the other names (hard links) below the roots of the rest
 * and of the files in emptied directories, by which a command could read them.
 */
export function resolveMasks(
  { masked, emptied }: Pick<MountPlan, "masked" | "emptied">,
  roots: readonly string[],
  tree: NameTree,
): Covered[] {
  const found = new Map<string, Covered>();
  const linked = new Map<string, Covered>();
  const addIfLinked = (file: Covered, stats: BigIntStats | undefined) => {
    if (stats && stats.nlink > 1n) linked.set(keyOf(stats), file);
  };
  for (const file of masked) {
    const stats = statsOf(file.path);
    if (stats === undefined || stats.isDirectory() || stats.isSymbolicLink()) continue;
    found.set(file.path, file);
    addIfLinked(file, stats);
  }
  for (const { path: directory, reason } of emptied)
    for (const path of filesBelow(directory, none, tree)) addIfLinked({ path, reason }, statsOf(path));
  if (linked.size === 0) return [...found.values()];
  const unseen = new Set(emptied.map(({ path }) => path));
  for (const root of roots)
    for (const path of filesBelow(root, unseen, tree)) {
      const stats = found.has(path) ? undefined : statsOf(path);
      const other = stats && stats.nlink > 1n ? linked.get(keyOf(stats)) : undefined;
      if (other) found.set(path, { path, reason: `it is the same file as ${other.path}: ${other.reason}` });
    }
  return [...found.values()];
}

/** Lists the files below a directory, but not those in `unseen` directories and in object stores. */
function* filesBelow(directory: string, unseen: ReadonlySet<string>, tree: NameTree): Generator<string> {
  if (unseen.has(directory) || isObjectStore(directory)) return;
  const listing = tree.list(directory);
  if (listing === undefined) return;
  for (const name of listing.files) yield `${directory}/${name}`;
  for (const name of listing.directories) yield* filesBelow(`${directory}/${name}`, unseen, tree);
}

const none: ReadonlySet<string> = new Set();

function statsOf(path: string): BigIntStats | undefined {
  return lstatSync(path, { bigint: true, throwIfNoEntry: false });
}

const keyOf = ({ dev, ino }: BigIntStats) => `${dev}:${ino}`;
