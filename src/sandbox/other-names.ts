import { type BigIntStats, lstatSync } from "node:fs";
import { isObjectStore } from "./git-directory.ts";
import type { Covered } from "./layers.ts";
import type { NameTree } from "./name-tree.ts";

/**
 * Looks at the files to mask once more: drops those that are gone, and adds the other names (hard links) of the rest below the
 * roots, by which a command could read them.
 */
export function resolveMasks(masked: readonly Covered[], roots: readonly string[], tree: NameTree): Covered[] {
  const found = new Map<string, Covered>();
  const linked = new Map<string, Covered>();
  for (const { path, reason } of masked) {
    const stats = statsOf(path);
    if (stats === undefined || stats.isDirectory() || stats.isSymbolicLink()) continue;
    found.set(path, { path, reason });
    if (stats.nlink > 1n) linked.set(keyOf(stats), { path, reason });
  }
  if (linked.size > 0) for (const root of roots) addLinks(root, linked, found, tree);
  return [...found.values()];
}

function addLinks(
  directory: string,
  linked: ReadonlyMap<string, Covered>,
  found: Map<string, Covered>,
  tree: NameTree,
): void {
  if (isObjectStore(directory)) return;
  const listing = tree.list(directory);
  if (listing === undefined) return;
  for (const name of listing.files) {
    const path = `${directory}/${name}`;
    const stats = statsOf(path);
    const other = stats && stats.nlink > 1n ? linked.get(keyOf(stats)) : undefined;
    if (stats && other && !found.has(path))
      found.set(path, { path, reason: `it is the same file as ${other.path}: ${other.reason}` });
  }
  for (const name of listing.directories) addLinks(`${directory}/${name}`, linked, found, tree);
}

function statsOf(path: string): BigIntStats | undefined {
  return lstatSync(path, { bigint: true, throwIfNoEntry: false });
}

const keyOf = ({ dev, ino }: BigIntStats) => `${dev}:${ino}`;
