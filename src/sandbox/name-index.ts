import { accessSync, type BigIntStats, constants, lstatSync, readdirSync } from "node:fs";
import { basename, dirname } from "node:path";
import type { DirectoryNames, NameFilter, NameTree } from "./name-tree.ts";

/** The names of one directory, as they were when its time of change was read. */
interface IndexedDirectory extends DirectoryNames {
  readonly changed: bigint;
  readonly inode: bigint;
  readonly device: bigint;
  /** False while a later change could have the same time. */
  readonly isSettled: boolean;
  readonly selected: Map<string, { filter: NameFilter; names: ReadonlyMap<string, number> }>;
}

/** Names by directory. Each look at a directory costs one lstat; its names are read again only after a change. */
export class NameIndex implements NameTree {
  readonly #directories = new Map<string, IndexedDirectory>();
  /** Directories that were checked since the last `refresh`. */
  #checked = new Set<string>();

  /** True if directories or selected names have come or gone so recently that others may have been missed since `refresh`. */
  isMoving = false;
  /** True if a directory was gone when it was read, though listed since `refresh` or there lately: what it holds is in no list. */
  isTorn = false;
  /**
   * True if all names that were checked since `refresh` were at one moment as they are listed: when the first directory was read. The
   * others were known before and are unchanged since.
   */
  isStill = false;
  #ignored: ReadonlySet<string> = new Set();
  /** Times at which a move was noticed, by directory. */
  readonly #moved = new Map<string, number>();

  /** Lets the next look at each directory check again for changes. Paths that are ignored do not count as moving. */
  refresh(ignored: ReadonlySet<string> = new Set()): void {
    this.#checked = new Set();
    this.isMoving = false;
    this.isTorn = false;
    this.isStill = true;
    this.#ignored = ignored;
    if (this.#directories.size > maxDirectories) this.#directories.clear();
  }

  list(directory: string): DirectoryNames | undefined {
    return this.#look(directory);
  }

  select(directory: string, filter: NameFilter): ReadonlyMap<string, number> {
    const found = this.#look(directory);
    if (found === undefined) return none;
    const known = found.selected.get(filter.key);
    if (known) return known.names;
    const names = selectNames(found, filter);
    if (found.selected.size >= maxFilters) found.selected.clear();
    found.selected.set(filter.key, { filter, names });
    return names;
  }

  /**
   * Reads each directory again that was read since `refresh`, and notes in `isMoving` if directories or selected names have
   * come or gone. Returns how many directories have changed. If that is at most one, and nothing has moved, all names were at one moment
   * as they are listed: a move between two directories changes both.
   */
  recheck(): number {
    this.isMoving = false;
    let changedCount = 0;
    for (const directory of this.#checked) {
      const known = this.#directories.get(directory);
      const now = Date.now();
      const stats = statsOf(directory);
      if (stats && known?.isSettled && isUnchanged(known, stats)) continue;
      const read = stats && readDirectory(directory, stats, now);
      if (read === undefined && known === undefined) continue;
      changedCount += 1;
      if (read === undefined) {
        this.#gone(directory);
        continue;
      }
      if (!this.#isSame(directory, known, read)) this.#noteMove(directory);
      for (const { filter } of known?.selected.values() ?? [])
        read.selected.set(filter.key, { filter, names: selectNames(read, filter) });
      this.#directories.set(directory, read);
    }
    return changedCount;
  }

  /** Returns what was read of each directory since `refresh`; undefined while anything moves, since a directory may have been gone meanwhile. */
  seen(): Map<string, DirectoryNames> | undefined {
    if (this.isMoving) return undefined;
    const seen = new Map<string, DirectoryNames>();
    for (const directory of this.#checked) {
      const known = this.#directories.get(directory);
      if (known === undefined) return undefined;
      seen.set(directory, known);
    }
    return seen;
  }

  /**
   * Looks at the directories that were seen, and checks if they hold the same names; then `seen` holds what was read now. `partial`
   * are the directories of which only some names count.
   */
  holdsAll(seen: Map<string, DirectoryNames>, partial: ReadonlyMap<string, CountedNames>): boolean {
    for (const [directory, before] of seen) {
      const now = this.#look(directory);
      const counted = partial.get(directory);
      if (now === before && counted === undefined) continue;
      if (now === undefined || textOf(before, counted?.before) !== textOf(now, counted?.now)) return false;
      seen.set(directory, now);
    }
    return true;
  }

  #look(directory: string): IndexedDirectory | undefined {
    const known = this.#directories.get(directory);
    if (known && this.#checked.has(directory)) return known;
    this.#checked.add(directory);
    const now = Date.now();
    const stats = statsOf(directory);
    if (stats && known?.isSettled && isUnchanged(known, stats)) return known;
    if (this.#checked.size > 1) this.isStill = false;
    const read = stats && readDirectory(directory, stats, now);
    if (read === undefined) return this.#gone(directory);
    this.#directories.set(directory, read);
    if (!read.isSettled) this.#observe(directory, known, read);
    return read;
  }

  /** Notes if what a directory holds has moved. Where it did lately, each further change may have moved it there and back. */
  #observe(directory: string, known: IndexedDirectory | undefined, read: IndexedDirectory): void {
    if (!this.#isSame(directory, known, read)) this.#noteMove(directory);
    else if (this.#movedLately(directory)) this.isMoving = true;
  }

  #noteMove(directory: string): void {
    this.isMoving = true;
    if (this.#moved.size > maxMoved) this.#moved.clear();
    this.#moved.set(directory, Date.now());
  }

  /** Forgets a directory that is not there. A root that is a file is no move; one that is absent may come. */
  #gone(directory: string): undefined {
    this.#directories.delete(directory);
    const parent = dirname(directory);
    const isListed =
      this.#checked.has(parent) && this.#directories.get(parent)?.directories.includes(basename(directory));
    if (isListed || this.#movedLately(directory)) this.isTorn = true;
    if (this.isTorn || lstatSync(directory, options)?.isDirectory() !== false) this.isMoving = true;
  }

  #movedLately(directory: string): boolean {
    return Date.now() - (this.#moved.get(directory) ?? 0) <= restlessMs;
  }

  /** Compares the directories in a directory, and the names that filters selected, with those that were known. */
  #isSame(directory: string, known: IndexedDirectory | undefined, read: IndexedDirectory): boolean {
    if (known === undefined) return false;
    const filters = [...known.selected.values()].map(({ filter }) => filter);
    const namesOf = ({ directories, files }: DirectoryNames) =>
      [...directories, ...files.filter((name) => filters.some((filter) => filter.test(name) !== 0))]
        .filter((name) => !this.#ignored.has(`${directory}/${name}`))
        .sort()
        .join("/");
    return namesOf(known) === namesOf(read);
  }
}

/** Checks if a name of a directory counts. */
type CountsName = (name: string) => boolean;

/** The names of one directory that count: of those that were seen, and of those that it holds now. */
export interface CountedNames {
  readonly before: CountsName;
  readonly now: CountsName;
}

/** Describes the names of a directory that count, whatever their order. */
const textOf = (
  { directories, files, links, isUnreadable = false }: DirectoryNames,
  counts: CountsName = () => true,
): string =>
  [...[directories, files, links].map((names) => names.filter(counts).sort().join("/")), isUnreadable].join("//");

/** Returns the state of a directory; undefined if there is none. */
function statsOf(directory: string): BigIntStats | undefined {
  const stats = lstatSync(directory, options);
  return stats?.isDirectory() ? stats : undefined;
}

const options = { bigint: true, throwIfNoEntry: false } as const;

/** Every change of the names sets the time of change, and no program can set it back, as it can the time of modification. */
const isUnchanged = ({ changed, inode, device }: IndexedDirectory, { ctimeNs, ino, dev }: BigIntStats) =>
  changed === ctimeNs && inode === ino && device === dev;

/** Reads a directory; undefined if it is gone. `now` is a time in ms before `stats` were read: what changes in between would pass for older than it is. */
function readDirectory(
  directory: string,
  { ctimeNs: changed, ino: inode, dev: device }: BigIntStats,
  now: number,
): IndexedDirectory | undefined {
  const names = readNames(directory);
  return (
    names && {
      ...names,
      changed,
      inode,
      device,
      isSettled: BigInt(now) * 1_000_000n - changed > minAgeNs,
      selected: new Map(),
    }
  );
}

/** Returns the names that a filter selects, with their bits. */
function selectNames({ directories, files }: DirectoryNames, filter: NameFilter): Map<string, number> {
  const selected = new Map<string, number>();
  for (const name of [...directories, ...files]) {
    const bits = filter.test(name);
    if (bits !== 0) selected.set(name, bits);
  }
  return selected;
}

/** Reads the names of a directory; undefined if it is gone. One that may not be searched counts as unreadable: a command of its owner could change that. */
function readNames(directory: string): DirectoryNames | undefined {
  try {
    if (Buffer.byteLength(directory) > maxPathBytes) return unreadable;
    accessSync(directory, constants.R_OK | constants.X_OK);
    const entries = readdirSync(directory, { withFileTypes: true });
    return {
      directories: entries.filter((entry) => entry.isDirectory()).map(({ name }) => name),
      files: entries.filter((entry) => !entry.isDirectory() && !entry.isSymbolicLink()).map(({ name }) => name),
      links: entries.filter((entry) => entry.isSymbolicLink()).map(({ name }) => name),
    };
  } catch (error) {
    const isGone = error instanceof Error && "code" in error && (error.code === "ENOENT" || error.code === "ENOTDIR");
    return isGone ? undefined : unreadable;
  }
}

const unreadable: DirectoryNames = { directories: [], files: [], links: [], isUnreadable: true };
/** Longer paths could not be mounted on, and what is below could not be named. */
const maxPathBytes = 3_500;

const none: ReadonlyMap<string, number> = new Map();
/** Kernels count changes in steps of up to 10 ms. */
const minAgeNs = 20_000_000n;
const restlessMs = 5_000;
const maxMoved = 10_000;
const maxFilters = 4;
/** Memory for about a million names; an index that grows over it starts from scratch. */
const maxDirectories = 100_000;
