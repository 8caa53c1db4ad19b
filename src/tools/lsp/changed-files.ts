import { type FSWatcher, readdirSync, watch } from "node:fs";
import { dirname, join } from "node:path";
import { setImmediate } from "node:timers/promises";
import { isWithin } from "../../sandbox/is-within.ts";
import { projectFiles } from "../fs/ripgrep.ts";
import { uriOf } from "./documents.ts";
import { presentStats } from "./present-stats.ts";

const maxDirectories = 2_000;
/** Directories that are not watched although no .gitignore names them. */
const ignoredNames = new Set(["node_modules", ".git"]);

/** A change of a file, as the protocol names it: 1 for a new one, 2 for a changed one, 3 for one that is gone. */
export interface FileEvent {
  readonly uri: string;
  readonly type: 1 | 2 | 3;
}

/** The files of a project that have changed since its server was notified last, whatever program changed them. */
export interface ChangedFiles {
  /** Adds a file that may have changed. */
  add(path: string): void;
  /** Returns the changes that were made before the call, and forgets them. */
  take(): Promise<FileEvent[]>;
  close(): void;
}

/** Watches the directories of a project that hold files which git does not ignore, at most 2,000. */
export async function watchProject(root: string): Promise<ChangedFiles> {
  const changed = new Set<string>();
  const known = new Set<string>();
  const watchers = new Map<string, FSWatcher>();

  function watchDirectory(directory: string): void {
    if (watchers.has(directory) || watchers.size === maxDirectories) return;
    try {
      const watcher = watch(directory, { persistent: false }, (_event, name) => {
        if (name !== null) found(join(directory, name));
      });
      watchers.set(directory, watcher);
      watcher.on("error", () => forget(directory));
    } catch {
      // It is gone again, or the system watches no more: servers then notice changes when a tool asks about the file.
    }
  }

  function forget(directory: string): void {
    watchers.get(directory)?.close();
    watchers.delete(directory);
  }

  /** Takes a path that was made, changed or removed. A new directory is watched, and its files are new. */
  function found(path: string): void {
    const stats = presentStats(path);
    if (stats?.isDirectory() !== true) {
      if (stats === undefined) forget(path);
      changed.add(path);
      return;
    }
    if (watchers.has(path) || watchers.size === maxDirectories) return;
    watchDirectory(path);
    for (const name of namesIn(path)) if (!ignoredNames.has(name)) found(join(path, name));
  }

  for (const name of await projectFiles(root)) {
    const path = join(root, name);
    known.add(path);
    for (let at = dirname(path); isWithin(at, root) && !watchers.has(at); at = dirname(at)) {
      watchDirectory(at);
      if (watchers.size === maxDirectories) break;
    }
  }
  watchDirectory(root);

  return {
    add: (path) => void changed.add(path),
    async take() {
      // What was written before is noticed in the next turn of the event loop.
      await setImmediate();
      const paths = [...changed];
      changed.clear();
      return paths.flatMap((path): FileEvent[] => {
        const uri = uriOf(path);
        const isThere = presentStats(path) !== undefined;
        if (!isThere) return known.delete(path) ? [{ uri, type: 3 }] : [];
        if (known.has(path)) return [{ uri, type: 2 }];
        known.add(path);
        return [{ uri, type: 1 }];
      });
    },
    close() {
      for (const watcher of watchers.values()) watcher.close();
      watchers.clear();
    },
  };
}

function namesIn(directory: string): string[] {
  try {
    return readdirSync(directory);
  } catch {
    return [];
  }
}
