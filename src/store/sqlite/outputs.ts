import { readdir, rm, stat } from "node:fs/promises";
import { join } from "node:path";
import type { OutputStore } from "../../call/ports.ts";
import { storeFull } from "../refusals.ts";
import { unavailable } from "./health.ts";
import { type OutputFile, openOutputFile } from "./output-file.ts";

/** Outputs as files, with the operations that the sweep needs. */
export interface OutputFiles extends OutputStore {
  /** Lists outputs that were not written to since then. */
  unwrittenSince(time: number): Promise<{ root: string; id: string }[]>;
  /** Removes all outputs of a session tree. */
  removeTree(root: string): Promise<void>;
  /** Keeps all outputs until the returned function is called: removals do nothing, and the next sweep repeats them. */
  hold(): () => void;
  close(): Promise<void>;
}

/** Stores each output in its own file, `<directory>/<root>/<id>`; those in use stay open. `holds` returns false if the disk lacks the space. */
export function createSqliteOutputs(directory: string, holds: (bytes: number) => boolean): OutputFiles {
  // In order of use, the latest last.
  const files = new Map<string, OutputFile>();
  const holders = new Set<symbol>();

  function use(path: string): OutputFile {
    const file = files.get(path) ?? openOutputFile(path);
    files.delete(path);
    files.set(path, file);
    if (files.size > maxOpenFiles) closeOldest(path);
    return file;
  }

  /** Closes the least recently used file. Files with pending reads or writes are never closed, however many there are. */
  function closeOldest(except: string): void {
    const oldest = files.entries().find(([path, file]) => path !== except && file.isIdle());
    if (oldest !== undefined) void forget(oldest[0]);
  }

  async function forget(path: string): Promise<void> {
    const file = files.get(path);
    files.delete(path);
    await file?.close();
  }

  function pathOf(root: string, id: string): string {
    if (!isName(root) || !isName(id))
      throw new Error(`an output cannot be named ${root}/${id}: both parts must match ${name}`);
    return join(directory, root, id);
  }

  return {
    async append(root, id, data) {
      const path = pathOf(root, id);
      if (!holds(data.byteLength)) throw storeFull();
      return use(path).append(data);
    },

    async read(root, id, offset, limit) {
      if (!isName(root) || !isName(id)) return undefined;
      const path = pathOf(root, id);
      const found = await use(path).read(offset, limit);
      if (found === undefined && files.get(path)?.isIdle()) files.delete(path);
      return found;
    },

    async remove(root, id) {
      if (holders.size > 0) return;
      const path = pathOf(root, id);
      await forget(path);
      await rm(path, { force: true });
    },

    async removeTree(root) {
      if (holders.size > 0) return;
      const treeDirectory = join(directory, root, "/");
      await Promise.all([...files.keys()].filter((path) => path.startsWith(treeDirectory)).map(forget));
      await rm(treeDirectory, { recursive: true, force: true });
    },

    hold() {
      const holder = Symbol();
      holders.add(holder);
      return () => void holders.delete(holder);
    },

    async unwrittenSince(time) {
      const stale: { root: string; id: string }[] = [];
      for (const root of (await existing(readdir(directory))) ?? []) {
        for (const id of (await existing(readdir(join(directory, root)))) ?? []) {
          const found = await existing(stat(join(directory, root, id)));
          if (found !== undefined && found.mtimeMs <= time) stale.push({ root, id });
        }
      }
      return stale;
    },

    async close() {
      await Promise.all([...files.keys()].map(forget));
    },
  };
}

const maxOpenFiles = 64;
const name = /^[A-Za-z0-9_-]{1,128}$/;
const isName = (text: string) => name.test(text);

/** Returns the result of a lookup of a file or directory; undefined if it does not exist. */
async function existing<T>(lookup: Promise<T>): Promise<T | undefined> {
  try {
    return await lookup;
  } catch (error) {
    if (error instanceof Error && "code" in error && error.code === "ENOENT") return undefined;
    throw unavailable(error);
  }
}
