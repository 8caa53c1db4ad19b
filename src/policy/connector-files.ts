import { foldCase } from "./wildcard.ts";

/** The files that connectors of agents wrote. Tools read and edit them only after an ask. */
export interface ConnectorFiles {
  /** Describes a path if it is such a file, or for an edit a directory that contains one. */
  describe(permission: string, path: string): string | undefined;
  /** Checks if a directory contains such a file. */
  isBelow(directory: string): boolean;
}

/** Creates the check over the present files. `files` returns the same array until they change. */
export function createConnectorFiles(files: () => readonly string[]): ConnectorFiles {
  let of: readonly string[] = [];
  let folded: readonly string[] = [];
  function current(): readonly string[] {
    const found = files();
    if (found !== of) {
      of = found;
      folded = found.map(foldCase);
    }
    return folded;
  }
  const isBelow = (directory: string) => {
    const start = `${foldCase(directory).replace(/\/$/, "")}/`;
    return current().some((file) => file.startsWith(start));
  };
  return {
    describe(permission, path) {
      if (current().length === 0 || (permission !== "edit" && permission !== "read")) return undefined;
      if (current().includes(foldCase(path))) return "a file of a connector, through which an agent asks";
      return permission === "edit" && isBelow(path) ? "a directory with files of a connector" : undefined;
    },
    isBelow: (directory) => current().length > 0 && isBelow(directory),
  };
}
