import {
  type BigIntStats,
  closeSync,
  existsSync,
  ftruncateSync,
  mkdirSync,
  openSync,
  readdirSync,
  renameSync,
  rmdirSync,
  rmSync,
  writeSync,
} from "node:fs";
import { dirname, join } from "node:path";
import { readIfExists } from "../core/read-files.ts";
import { isOtherProcessAlive } from "../core/worker-directory.ts";
import { reachableStats } from "./git-directories.ts";

/** Paths that the mounts of one command need or may leave on the host. */
export interface MountTraces {
  /** Paths that do not exist: the mounts need an empty directory there, as a placeholder. */
  absent: readonly string[];
  /** Masked files and emptied directories. bubblewrap makes those that have vanished. */
  mounted: readonly string[];
  /** Time before the plan was made, by the clock of this machine. */
  sinceMs: number;
}

/** Files and directories on the host that exist only for the mounts of commands. */
export type MountPoints = ReturnType<typeof createMountPoints>;

/** The mount points of one command. */
export interface HeldMountPoints {
  /** Removes what no command needs any more. */
  free(): void;
  /**
   * Lets the placeholders wait outside of the workspace while no command uses them: a mount stays with its directory wherever that is
   * moved. Returns the function that removes them; undefined if they cannot be moved.
   */
  rest(): (() => void) | undefined;
}

/** A placeholder, and the numbers of commands that use it and of sandboxes that wait with a mount on it. */
interface Placeholder {
  users: number;
  waiting: number;
  identity: string;
  /** Its path outside of the workspace while no command uses it; undefined while it is in its place. */
  resting?: string;
}

/**
 * Creates the mount points. `directory` holds a list of them for each process, written before they are made, so that the next
 * start can remove them after a crash. Only empty directories and files that were made for a mount are ever removed.
 */
export function createMountPoints(directory: string | undefined) {
  const placeholders = new Map<string, Placeholder>();
  const watching = new Set<Set<string>>();
  const list = directory === undefined ? undefined : openList(directory);
  const resting = directory === undefined ? undefined : join(directory, "resting");
  let lastResting = 0;

  function use(path: string): boolean {
    const known = placeholders.get(path);
    if (known && putBack(path, known)) known.users += 1;
    else {
      const identity = makePlaceholder(path);
      if (identity === undefined) return false;
      placeholders.set(path, { users: 1, waiting: 0, identity });
      for (const paths of watching) paths.add(path);
    }
    return true;
  }

  /** Moves a placeholder to its place, if it is not there; returns false if something else is there by now. */
  function putBack(path: string, known: Placeholder): boolean {
    if (known.resting === undefined) return true;
    try {
      // Renamed over an empty directory it would replace that.
      if (madeStats(path) !== undefined) throw new Error("something else is there");
      renameSync(known.resting, path);
    } catch {
      forget(path, known);
      return false;
    }
    delete known.resting;
    for (const paths of watching) paths.add(path);
    return true;
  }

  function leave(path: string): void {
    const known = placeholders.get(path);
    if (!known) return;
    known.users -= 1;
    settle(path, known);
  }

  /** Moves or removes a placeholder that no command uses; returns false if a sandbox waits for it and it could not be moved. */
  function settle(path: string, known: Placeholder): boolean {
    if (known.users > 0 || (known.waiting > 0 && (known.resting !== undefined || moveAway(path, known)))) return true;
    forget(path, known);
    return known.waiting === 0;
  }

  function moveAway(path: string, known: Placeholder): boolean {
    if (resting === undefined) return false;
    try {
      if (identityOf(path) !== known.identity) return false;
      mkdirSync(resting, { recursive: true, mode: 0o700 });
      lastResting += 1;
      const away = join(resting, `${process.pid}-${lastResting}`);
      renameSync(path, away);
      // A directory with content belongs to another program.
      if (readdirSync(away).length > 0) renameSync(away, path);
      else known.resting = away;
      return known.resting !== undefined;
    } catch {
      // It is on another disk, for example.
      return false;
    }
  }

  function forget(path: string, { resting, identity }: Placeholder): void {
    placeholders.delete(path);
    removePlaceholder(resting ?? path, identity);
  }

  /** Lets sandboxes that wait keep placeholders, instead of a command; see `rest`. */
  function rest(paths: readonly string[]): (() => void) | undefined {
    const held = paths.flatMap((path) => {
      const known = placeholders.get(path);
      return known ? [{ path, known }] : [];
    });
    for (const { known } of held) {
      known.users -= 1;
      known.waiting += 1;
    }
    const end = () => {
      for (const { path, known } of held) {
        known.waiting -= 1;
        if (placeholders.get(path) === known) settle(path, known);
      }
    };
    const areMoved = held.map(({ path, known }) => settle(path, known)).every(Boolean);
    if (areMoved) return end;
    end();
    return undefined;
  }

  return {
    /**
     * Collects the placeholders that exist, also those that are made meanwhile, until `stop` is called. Their paths count as absent:
     * a placeholder disappears with the last command that uses it.
     */
    watch(): { paths: ReadonlySet<string>; stop(): void } {
      const paths = new Set(
        placeholders.entries().flatMap(([path, { resting }]) => (resting === undefined ? [path] : [])),
      );
      watching.add(paths);
      return { paths, stop: () => void watching.delete(paths) };
    },
    /** Makes the placeholders of one command that do not exist. */
    hold(traces: MountTraces): HeldMountPoints {
      const entry = list?.add(traces);
      // Without an entry in the list a crash would leave placeholders for ever.
      const isStored = list === undefined || entry !== undefined;
      let used = isStored ? traces.absent.filter(use) : [];
      entry?.made(used.map((path) => [path, placeholders.get(path)?.identity ?? ""]));
      return {
        free() {
          for (const path of used) leave(path);
          removeMountPoints(traces);
          entry?.remove();
        },
        rest() {
          const resting = used;
          used = [];
          return rest(resting);
        },
      };
    },
    /** Removes what services left that ended without releasing it. */
    recover(): void {
      if (directory === undefined) return;
      for (const name of readdirSync(directory)) {
        const pid = Number.parseInt(name, 10);
        if (Number.isNaN(pid) || isOtherProcessAlive(pid)) continue;
        // Another process that starts now may have removed it.
        for (const traces of tracesIn(readIfExists(join(directory, name)) ?? "")) removeLeftovers(traces);
        rmSync(join(directory, name), { force: true });
      }
      if (resting === undefined || !existsSync(resting)) return;
      for (const name of readdirSync(resting))
        if (!isOtherProcessAlive(Number.parseInt(name, 10))) removeIfEmpty(join(resting, name));
      removeIfEmpty(resting);
    },
    close: (): void => list?.close(),
  };
}

/** Makes an empty directory; returns its identity, undefined if that is not possible: what exists by now is mounted as it is. */
function makePlaceholder(path: string): string | undefined {
  try {
    mkdirSync(path);
    return identityOf(path);
  } catch {
    return undefined;
  }
}

function removePlaceholder(path: string, identity: string): void {
  if (identityOf(path) === identity) removeIfEmpty(path);
}

function removeIfEmpty(path: string): void {
  try {
    rmdirSync(path);
  } catch {
    // Somebody has put something into it, so it is theirs now.
  }
}

/** Returns the identity of a directory; undefined for anything else. */
function identityOf(path: string): string | undefined {
  const stats = madeStats(path);
  return stats?.isDirectory() ? `${stats.dev}:${stats.ino}` : undefined;
}

/** Returns undefined also for what a command has made unreachable: bubblewrap could reach it, so nothing was made there. */
function madeStats(path: string): BigIntStats | undefined {
  const stats = reachableStats(path);
  return stats === "unreachable" ? undefined : stats;
}

/** Removes what bubblewrap made to mount on, where masked paths were gone when it started. */
function removeMountPoints({ mounted, sinceMs }: MountTraces): void {
  for (const path of mounted) {
    const stats = madeStats(path);
    if (stats === undefined || !isMadeForMount(Number(stats.birthtimeMs), sinceMs)) continue;
    const isEmptyFile = stats.isFile() && stats.size === 0n && (stats.mode & 0o777n) === mountPointMode;
    if (isEmptyFile) rmSync(path, { force: true });
    else if (!stats.isDirectory()) continue;
    removeEmptyDirectories(isEmptyFile ? dirname(path) : path, sinceMs);
  }
}

/** Checks if something was made when bubblewrap made the mounts. What is made later is none of ours. */
const isMadeForMount = (bornMs: number, sinceMs: number) => bornMs >= sinceMs && bornMs < sinceMs + maxSetupMs;
/** Maximum time from the begin of a plan to its last mount. */
const maxSetupMs = 60_000;

/** The mode of files that bubblewrap makes. */
const mountPointMode = 0o444n;

/** Removes a directory and its parents, as far as they are empty and were made since then. */
function removeEmptyDirectories(directory: string, sinceMs: number): void {
  const stats = madeStats(directory);
  if (!stats?.isDirectory() || !isMadeForMount(Number(stats.birthtimeMs), sinceMs)) return;
  try {
    rmdirSync(directory);
  } catch {
    // Something else is in it, so it is not ours alone.
    return;
  }
  removeEmptyDirectories(dirname(directory), sinceMs);
}

/** The traces of a command as they are stored, with the placeholders that were made. */
interface StoredTraces extends MountTraces {
  made?: readonly (readonly [path: string, identity: string])[];
}

/** Removes what a command left whose service has ended. */
function removeLeftovers({ made, ...traces }: StoredTraces): void {
  for (const [path, identity] of made ?? []) removePlaceholder(path, identity);
  // The service ended while it made them.
  if (made === undefined) removeMountPoints({ ...traces, mounted: traces.absent });
  removeMountPoints(traces);
}

/** The list of one process: lines of JSON, appended; the last one about a command counts. */
function openList(directory: string) {
  mkdirSync(directory, { recursive: true, mode: 0o700 });
  const file = join(directory, `${process.pid}`);
  const entries = new Map<number, StoredTraces>();
  let descriptor: number | undefined;
  let bytes = 0;
  let lastId = 0;

  function append(id: number, traces: StoredTraces): void {
    descriptor ??= openSync(file, "a", 0o600);
    bytes += writeSync(descriptor, `${JSON.stringify([id, traces])}\n`);
    entries.set(id, traces);
  }

  /** Starts the list again when no command runs, or when it has grown. */
  function shorten(): void {
    if (descriptor === undefined || (entries.size > 0 && bytes < maxListBytes)) return;
    ftruncateSync(descriptor);
    bytes = 0;
    for (const [id, traces] of entries) append(id, traces);
  }

  return {
    /** Adds the traces of a command; undefined if they cannot be stored. */
    add(traces: MountTraces) {
      const id = ++lastId;
      try {
        append(id, traces);
      } catch {
        return undefined;
      }
      return {
        made(made: StoredTraces["made"] & {}): void {
          try {
            append(id, { ...traces, made });
          } catch {
            // Then they are recognized by the time at which they were made.
          }
        },
        remove(): void {
          entries.delete(id);
          shorten();
        },
      };
    },
    close(): void {
      if (descriptor !== undefined) closeSync(descriptor);
      descriptor = undefined;
      if (entries.size === 0) rmSync(file, { force: true });
    },
  };
}

const maxListBytes = 1_048_576;

/** Reads a list. A line that was cut off by a crash is left out. */
function tracesIn(text: string): StoredTraces[] {
  const entries = new Map<number, StoredTraces>();
  for (const line of text.split("\n")) {
    try {
      const [id, traces] = JSON.parse(line) as [number, StoredTraces];
      entries.set(id, traces);
    } catch {
      // The line before it was written whole, since each is written before its effects.
    }
  }
  return [...entries.values()];
}
