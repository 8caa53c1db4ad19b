import { basename } from "node:path";
import { isObjectStore, pathInGitDirectory } from "./git-directory.ts";
import { isWithin } from "./is-within.ts";
import type { Covered } from "./layers.ts";
import { createNameFilter, nameHits } from "./name-filter.ts";
import type { NameFilter } from "./name-tree.ts";
import { changeProblem, directoryProblem, holdsAllowed, packageDirectories, rulePlaceOf } from "./path-problems.ts";
import type { PlanInput, PlanRoot } from "./plan-input.ts";

/** The walk below one directory. */
interface Search {
  readonly input: PlanInput;
  readonly root: PlanRoot;
  readonly filter: NameFilter;
  readonly found: Covered[];
}

/**
 * Lists the paths below directories that a command may not make or change, also links, which no mount can cover. A directory
 * below which nothing may be changed stands for all that is in it.
 */
export function restrictedPaths(input: PlanInput, directories: readonly string[]): Covered[] {
  const found: Covered[] = [];
  for (const directory of directories) {
    const root = input.roots.find(({ absolute }) => isWithin(directory, absolute));
    if (!root?.isWritable) continue;
    searchDirectory({ input, root, filter: createNameFilter(input.decisions, root), found }, directory, 0, checked);
  }
  return found;
}

const checked = nameHits.edit | nameHits.protected;

/** Searches a directory. `inherited` are bits of the names above it, `checks` those that are still to check. */
function searchDirectory(search: Search, directory: string, inherited: number, checks: number): void {
  const { input, filter } = search;
  const listing = input.tree.list(directory);
  if (listing === undefined) return;
  const isGit = pathInGitDirectory(`${directory}/`) !== undefined;
  const all = inherited | (isGit ? nameHits.protected : 0);
  const selected = input.tree.select(directory, filter);
  for (const name of listing.directories)
    searchBelow(search, `${directory}/${name}`, all | (selected.get(name) ?? 0), checks);
  for (const name of listing.files) addPath(search, `${directory}/${name}`, all | (selected.get(name) ?? 0), checks);
  for (const name of listing.links) addPath(search, `${directory}/${name}`, all | filter.test(name), checks);
}

function searchBelow(search: Search, path: string, hits: number, checks: number): void {
  const { input, root, found } = search;
  if (input.hidden.has(path) || path === root.except || isObjectStore(path)) return;
  const problem = hits & checks ? directoryProblem(input, rulePlaceOf(root, path)) : undefined;
  if (problem !== undefined && !holdsAllowed(input, "edit", path)) {
    found.push({ path, reason: problem });
    return;
  }
  const isInstalled = packageDirectories.has(basename(path));
  searchDirectory(search, path, hits, isInstalled ? checks & ~nameHits.protected : checks);
}

function addPath({ input, root, found }: Search, path: string, hits: number, checks: number): void {
  if ((hits & checks) === 0 || input.hidden.has(path)) return;
  const problem = changeProblem(input, rulePlaceOf(root, path));
  if (problem !== undefined) found.push({ path, reason: problem });
}
