import type { PlaceFiles } from "./confinement.ts";

/** The paths that calls were allowed to edit while a command ran: canonical ones, and those with all that is below. */
export interface AllowedMeanwhile {
  readonly edit: ReadonlySet<string>;
  readonly editTrees: ReadonlySet<string>;
}

/** One running command. */
export interface RunningCommand extends AllowedMeanwhile {
  leave(): void;
}

/** The commands that run now, with the files that are mounted for them, and what others change meanwhile. */
export interface RunningCommands {
  /** Adds a command before its mounts are made. `mounted` are the files that are mounted over one by one. */
  enter(files: Pick<PlaceFiles, "edit" | "editTrees">, mounted: readonly string[]): RunningCommand;
  /** Checks if a file is mounted over for a running command: another file of its name would not be covered. */
  isMounted(path: string): boolean;
  /** Reports that a call has written, or an approver allowed, a path. */
  wrote(path: string): void;
}

interface Entry {
  edit: Set<string>;
  editTrees: Set<string>;
  mounted: readonly string[];
}

/** Creates the list of running commands of one service. */
export function createRunningCommands(): RunningCommands {
  const entries = new Set<Entry>();
  return {
    enter({ edit, editTrees = [] }, mounted) {
      const entry: Entry = { edit: new Set(edit), editTrees: new Set(editTrees), mounted };
      // What one was allowed may appear while another one runs.
      for (const other of entries) {
        for (const path of other.edit) entry.edit.add(path);
        for (const path of other.editTrees) entry.editTrees.add(path);
        for (const path of edit) other.edit.add(path);
        for (const path of editTrees) other.editTrees.add(path);
      }
      entries.add(entry);
      return { edit: entry.edit, editTrees: entry.editTrees, leave: () => void entries.delete(entry) };
    },
    isMounted: (path) => [...entries].some(({ mounted }) => mounted.includes(path)),
    wrote(path) {
      for (const { editTrees } of entries) editTrees.add(path);
    },
  };
}
