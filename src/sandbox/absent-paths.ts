import { basename, dirname } from "node:path";
import { liveNames } from "../policy/protected-files.ts";
import { isWithin } from "./is-within.ts";
import type { Covered } from "./layers.ts";
import type { NameTree } from "./name-tree.ts";
import { changeProblem, directoryProblem, holdsAllowed, rulePlaceOf } from "./path-problems.ts";
import type { PlanInput, PlanRoot } from "./plan-input.ts";

/** Maximum number of paths of a root that do not exist and are covered: each takes a mount. */
const maxAbsent = 32;

/**
 * Lists paths that do not exist and that a command may not make, directly below existing directories: names that other programs
 * apply at once, and paths that rules name. A root without any entry has none, since programs that set up a project want an empty
 * directory.
 */
export function absentPaths(input: PlanInput, root: PlanRoot): Covered[] {
  const { tree, decisions } = input;
  if (isEmpty(tree, root.absolute)) return [];
  const live = liveNames.map((name) => `${root.absolute}/${name}`);
  return [...new Set([...decisions.deniedPaths(root), ...live])]
    .filter((path) => isAbsent(tree, root.absolute, path) && !isFree(input, root, path))
    .flatMap((path) => {
      const place = rulePlaceOf(root, path);
      const reason = changeProblem(input, place) ?? directoryProblem(input, place);
      return reason === undefined ? [] : [{ path, reason }];
    })
    .slice(0, maxAbsent);
}

function isEmpty(tree: NameTree, directory: string): boolean {
  const { directories = [], files = [], links = [] } = tree.list(directory) ?? {};
  return directories.length + files.length + links.length === 0;
}

/** Checks if a path does not exist and its directory does, without any link on the way. */
function isAbsent(tree: NameTree, root: string, path: string): boolean {
  const directory = dirname(path);
  const names = directory
    .slice(root.length + 1)
    .split("/")
    .filter((name) => name !== "");
  let at = root;
  for (const name of names) {
    if (!tree.list(at)?.directories.includes(name)) return false;
    at = `${at}/${name}`;
  }
  const listing = tree.list(directory);
  const name = basename(path);
  return listing !== undefined && ![...listing.directories, ...listing.files, ...listing.links].includes(name);
}

/** Checks if the call may make a path or something below it, or if the path is none of this root. */
function isFree(input: PlanInput, root: PlanRoot, path: string): boolean {
  const { editTrees, allowed, hidden } = input;
  return (
    allowed.edit.has(path) ||
    holdsAllowed(input, "edit", path) ||
    editTrees.some((tree) => isWithin(path, tree) || isWithin(tree, path)) ||
    (root.except !== undefined && isWithin(path, root.except)) ||
    hidden.has(path)
  );
}
