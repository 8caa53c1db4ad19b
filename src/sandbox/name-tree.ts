import { basename, dirname } from "node:path";
import type { FileDecisions } from "../policy/file-decisions.ts";
import { plainName, type ReadPlace } from "../policy/read-doubts.ts";

/** The entries of a directory. */
export interface DirectoryNames {
  readonly directories: readonly string[];
  readonly files: readonly string[];
  /** Symbolic links; nothing can be mounted over them. */
  readonly links: readonly string[];
  /** True if the names cannot be read, so that none is known. */
  readonly isUnreadable?: boolean;
}

/** The names below the roots, as they are now. */
export interface NameTree {
  list(directory: string): DirectoryNames | undefined;
  /** Returns the directories and files of a directory that a filter selects, with their bits. */
  select(directory: string, filter: NameFilter): ReadonlyMap<string, number>;
}

/** A test of names whose results are cached by its key. */
export interface NameFilter {
  readonly key: string;
  /** Returns the bits of `nameHits`; 0 for a name that nothing restricts. */
  test(name: string): number;
}

/** Returns a tree without these paths. */
export function treeWithout(tree: NameTree, paths: readonly string[]): NameTree {
  const left = Map.groupBy(paths, dirname);
  if (left.size === 0) return tree;
  const namesIn = (directory: string) => new Set(left.get(directory)?.map((path) => basename(path)));
  return {
    list(directory) {
      const listing = tree.list(directory);
      if (listing === undefined || !left.has(directory)) return listing;
      const removed = namesIn(directory);
      const isLeft = (name: string) => !removed.has(name);
      const { directories, files, links } = listing;
      const names = {
        directories: directories.filter(isLeft),
        files: files.filter(isLeft),
        links: links.filter(isLeft),
      };
      return { ...listing, ...names };
    },
    select(directory, filter) {
      const selected = tree.select(directory, filter);
      if (!left.has(directory)) return selected;
      const names = namesIn(directory);
      return new Map([...selected].filter(([name]) => !names.has(name)));
    },
  };
}

/** Reasons to check a name, as bits. */
export const nameHits = { read: 1, edit: 2, protected: 4 } as const;

/** Creates the filter of the names below a directory that rules may restrict. Without hints every name counts. */
export function createNameFilter(decisions: FileDecisions, directory: ReadPlace): NameFilter {
  const read = decisions.hints("read", directory);
  const edit = decisions.hints("edit", directory);
  return {
    key: JSON.stringify([read, edit, decisions.protectedKey]),
    test(name) {
      const folded = name.toLowerCase();
      const isPlain = plainName.test(name);
      const hits = (hints: readonly string[] | undefined) =>
        !isPlain || hints === undefined || hints.some((hint) => folded.includes(hint));
      return (
        (hits(read) ? nameHits.read : 0) |
        (hits(edit) ? nameHits.edit : 0) |
        (decisions.mayBeProtected(name) ? nameHits.protected : 0)
      );
    },
  };
}
