import type { ReadPlace } from "../policy/read-doubts.ts";
import { isObjectStore } from "./git-directory.ts";
import type { DirectoryNames, NameTree } from "./name-tree.ts";

/** The parts of a directory that are open: all of it, or these files and directories. */
export interface OpenPaths {
  isOpen: boolean;
  paths: string[];
}

/** Maximum number of files and directories that are judged; the others count as closed. */
const maxJudged = 5_000;

/** Objects of git have no names that rules could match: their directory counts as a whole. */
const empty: DirectoryNames = { directories: [], files: [], links: [] };

/**
 * Finds the largest directories below which everything is open, and the open files elsewhere. A directory counts only if a
 * file that is created there would be open, too.
 */
export function openPaths(root: ReadPlace, tree: NameTree, isOpen: (place: ReadPlace) => boolean): OpenPaths {
  let judged = 0;
  const judge = (place: ReadPlace) => ++judged <= maxJudged && isOpen(place);
  const visit = (directory: ReadPlace): OpenPaths => {
    if (++judged > maxJudged) return { isOpen: false, paths: [] };
    const listing = isObjectStore(directory.absolute) ? empty : tree.list(directory.absolute);
    if (listing === undefined || listing.isUnreadable) return { isOpen: false, paths: [] };
    const below = (name: string): ReadPlace => ({
      absolute: `${directory.absolute}/${name}`,
      pattern: directory.pattern === "." ? name : `${directory.pattern}/${name}`,
    });
    const files = listing.files.map(below);
    const open = files.filter(judge);
    const directories = listing.directories.map((name) => ({ place: below(name), found: visit(below(name)) }));
    const isWhole =
      open.length === files.length &&
      directories.every(({ found }) => found.isOpen) &&
      judge(below("toolgate-any-file"));
    if (isWhole) return { isOpen: true, paths: [directory.absolute] };
    const paths = directories.flatMap(({ place, found }) => (found.isOpen ? [place.absolute] : found.paths));
    return { isOpen: false, paths: [...paths, ...open.map(({ absolute }) => absolute)] };
  };
  return visit(root);
}
