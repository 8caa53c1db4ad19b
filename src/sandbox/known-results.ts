import { basename, dirname } from "node:path";
import type { CountedNames, NameIndex } from "./name-index.ts";
import { type DirectoryNames, type NameTree, treeWithout } from "./name-tree.ts";

/** Facts about files that a plan depends on, in addition to its request. */
export interface FileFacts {
  readonly tree: NameTree;
  /** Checks if git tracks a file below a directory. True if that is not known. */
  hasTrackedFiles(directory: string): boolean;
}

/** A result, and the facts from which it was computed. */
interface KnownResult<R> {
  readonly result: R;
  readonly seen: Map<string, DirectoryNames>;
  readonly placeholders: readonly string[];
  readonly tracked: ReadonlyMap<string, boolean>;
}

/** Each stores a reference for each directory, of which a workspace may have 50,000. */
const maxResults = 4;

/**
 * Stores the last results of a function that depends on a request and on facts about files alone. A result is returned again
 * if every directory that was listed holds the same names, which costs one lstat for each, and git tracks the same files.
 */
export function createKnownResults<R>(
  index: NameIndex,
  tracks: FileFacts["hasTrackedFiles"],
): (request: string, placeholders: readonly string[], compute: (facts: FileFacts) => R) => R {
  const results = new Map<string, KnownResult<R>>();

  function isCurrent({ seen, placeholders, tracked }: KnownResult<R>, now: readonly string[]): boolean {
    return (
      index.holdsAll(seen, countedNames(placeholders, now)) &&
      [...tracked].every(([directory, isTracked]) => tracks(directory) === isTracked)
    );
  }

  return (request, placeholders, compute) => {
    const known = results.get(request);
    results.delete(request);
    if (known !== undefined && isCurrent(known, placeholders)) {
      results.set(request, { ...known, placeholders });
      return known.result;
    }
    const tracked = new Map<string, boolean>();
    const result = compute({
      tree: treeWithout(index, placeholders),
      hasTrackedFiles(directory) {
        const isTracked = tracks(directory);
        tracked.set(directory, isTracked);
        return isTracked;
      },
    });
    const seen = index.seen();
    if (seen !== undefined) results.set(request, { result, seen, placeholders, tracked });
    for (const oldest of results.size > maxResults ? results.keys().take(1) : []) results.delete(oldest);
    return result;
  };
}

/** Returns for each directory with placeholders which names of it count, since they are none. */
function countedNames(before: readonly string[], now: readonly string[]): Map<string, CountedNames> {
  const isNoneOf = (paths: readonly string[], directory: string) => {
    const names = new Set(paths.filter((path) => dirname(path) === directory).map((path) => basename(path)));
    return (name: string) => !names.has(name);
  };
  const directories = new Set([...before, ...now].map((path) => dirname(path)));
  return new Map(
    [...directories].map((directory) => [
      directory,
      { before: isNoneOf(before, directory), now: isNoneOf(now, directory) },
    ]),
  );
}
