import { type BigIntStats, type FSWatcher, lstatSync, watch } from "node:fs";
import { dirname, join } from "node:path";
import { setImmediate } from "node:timers/promises";
import { fileURLToPath, pathToFileURL } from "node:url";
import { isWithin } from "../../core/paths.ts";
import { listNames } from "../../core/read-files.ts";
import { projectFiles } from "../fs/ripgrep.ts";
import type { LanguageConnection } from "./connection.ts";

/** Documents that stay open at a server. An edit of more files opens all of them for its time. */
const maxOpen = 64;

/** A document as a server knows it. */
export interface OpenDocument {
  readonly uri: string;
  readonly path: string;
  readonly version: number;
  readonly text: string;
}

/** The documents that a server has open; what is sent is always what is on disk. */
export interface Documents {
  /** Opens a document with this text, or changes it; returns the version that the server knows now. */
  sync(path: string, languageId: string, text: string): OpenDocument;
  get(path: string): OpenDocument | undefined;
  /** Lists the canonical paths of open documents, the one that was used last at the end. */
  paths(): string[];
  close(path: string): void;
  /** Closes those that were not used for longest, if there are many. */
  trim(): void;
}

/** Creates the documents of a new connection. */
export function createDocuments({ notify }: Pick<LanguageConnection, "notify">): Documents {
  const open = new Map<string, OpenDocument>();

  function close(path: string): void {
    const document = open.get(path);
    if (document === undefined) return;
    open.delete(path);
    notify("textDocument/didClose", { textDocument: { uri: document.uri } });
  }

  return {
    sync(path, languageId, text) {
      const before = open.get(path);
      // A map keeps the order of insertion.
      open.delete(path);
      const uri = before?.uri ?? uriOf(path);
      const isSame = before?.text === text;
      const document = isSame ? before : { uri, path, text, version: (before?.version ?? 0) + 1 };
      open.set(path, document);
      if (before === undefined) {
        const { version } = document;
        notify("textDocument/didOpen", { textDocument: { uri, languageId, version, text } });
      } else if (!isSame) {
        const { version } = document;
        notify("textDocument/didChange", { textDocument: { uri, version }, contentChanges: [{ text }] });
        notify("textDocument/didSave", { textDocument: { uri } });
      }
      return document;
    },
    get: (path) => open.get(path),
    paths: () => [...open.keys()],
    close,
    trim() {
      for (const path of [...open.keys()].slice(0, Math.max(open.size - maxOpen, 0))) close(path);
    },
  };
}

/** Returns the address of a file in the protocol. */
export const uriOf = (path: string) => pathToFileURL(path).href;

/** Returns the path of a file by its address; undefined for an address of something else. */
export function pathOfUri(uri: string): string | undefined {
  try {
    return fileURLToPath(uri);
  } catch {
    return undefined;
  }
}

/** Returns the state of a path now; undefined if there is nothing, below a file too, or if it cannot be read. */
export function presentStats(path: string): BigIntStats | undefined {
  try {
    return lstatSync(path, { bigint: true, throwIfNoEntry: false });
  } catch {
    return undefined;
  }
}

const maxDirectories = 2_000;
/** Directories that are not watched although no .gitignore names them. */
const ignoredNames = new Set(["node_modules", ".git"]);

/** A change of a file, as the protocol names it: 1 for a new one, 2 for a changed one, 3 for one that is gone. */
interface FileEvent {
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
    for (const name of listNames(path)) if (!ignoredNames.has(name)) found(join(path, name));
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
        // A directory may have come and gone, as one that the sandbox makes.
        const isFile = presentStats(path)?.isDirectory() === false;
        if (!isFile) return known.delete(path) ? [{ uri, type: 3 }] : [];
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
