import type { GitObjects } from "./effects.ts";

/** The names that git's objects have in a repository. */
export interface GitNames {
  /**
   * Returns the names, relative to the top directory, that contain one of the substrings in lower case or are not plain
   * (`readDoubts`); all names without substrings.
   */
  select(objects: GitObjects, hints: readonly string[] | undefined): readonly string[];
  /** Returns the reason why the names are not all known, a clause about the repository; undefined if they are. */
  problem(objects: GitObjects): string | undefined;
}
