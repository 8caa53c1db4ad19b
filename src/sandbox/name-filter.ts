import type { FileDecisions } from "../policy/file-decisions.ts";
import { plainName, type ReadPlace } from "../policy/read-doubts.ts";
import type { NameFilter } from "./name-tree.ts";

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
