import { lstatSync, readdirSync } from "node:fs";
import type { DirectoryNames, NameFilter, NameTree } from "./name-tree.ts";

/** The names of one directory, as they were when its time of change was read. */
interface IndexedDirectory extends DirectoryNames {
  readonly changed: bigint;
  readonly inode: bigint;
  readonly device: bigint;
  /** False while a later change could have the same time. */
  readonly isSettled: boolean;
  readonly selected: Map<string, ReadonlyMap<string, number>>;
}

/** Names by directory. Each look at a directory costs one lstat; its names are read again only after a change. */
export class NameIndex implements NameTree {
  readonly #directories = new Map<string, IndexedDirectory>();
  /** Directories that were checked since the last `refresh`. */
  #checked = new Set<string>();

  /** Lets the next look at each directory check again for changes. */
  refresh(): void {
    this.#checked = new Set();
    if (this.#directories.size > maxDirectories) this.#directories.clear();
  }

  list(directory: string): DirectoryNames | undefined {
    return this.#look(directory);
  }

  select(directory: string, filter: NameFilter): ReadonlyMap<string, number> {
    const found = this.#look(directory);
    if (found === undefined) return none;
    const known = found.selected.get(filter.key);
    if (known) return known;
    const selected = new Map<string, number>();
    for (const name of [...found.directories, ...found.files]) {
      const bits = filter.test(name);
      if (bits !== 0) selected.set(name, bits);
    }
    if (found.selected.size >= maxFilters) found.selected.clear();
    found.selected.set(filter.key, selected);
    return selected;
  }

  #look(directory: string): IndexedDirectory | undefined {
    const known = this.#directories.get(directory);
    if (known && this.#checked.has(directory)) return known;
    this.#checked.add(directory);
    const stats = lstatSync(directory, { bigint: true, throwIfNoEntry: false });
    if (!stats?.isDirectory()) {
      this.#directories.delete(directory);
      return undefined;
    }
    const { mtimeNs: changed, ino: inode, dev: device } = stats;
    if (known?.isSettled && known.changed === changed && known.inode === inode && known.device === device) return known;
    const read = readNames(directory, { changed, inode, device });
    if (read) this.#directories.set(directory, read);
    else this.#directories.delete(directory);
    return read;
  }
}

function readNames(
  directory: string,
  state: Pick<IndexedDirectory, "changed" | "inode" | "device">,
): IndexedDirectory | undefined {
  const now = BigInt(Date.now()) * 1_000_000n;
  try {
    const entries = readdirSync(directory, { withFileTypes: true });
    return {
      ...state,
      directories: entries.filter((entry) => entry.isDirectory()).map(({ name }) => name),
      files: entries.filter((entry) => !entry.isDirectory() && !entry.isSymbolicLink()).map(({ name }) => name),
      isSettled: now - state.changed > minAgeNs,
      selected: new Map(),
    };
  } catch {
    // The command has the rights of the service, so it cannot read the directory either.
    return undefined;
  }
}

const none: ReadonlyMap<string, number> = new Map();
/** Kernels count changes in steps of up to 10 ms. */
const minAgeNs = 20_000_000n;
const maxFilters = 4;
/** Memory for about a million names; an index that grows over it starts from scratch. */
const maxDirectories = 100_000;
