import { type FileHandle, mkdir, open, readdir, rm, stat } from "node:fs/promises";
import { dirname, join } from "node:path";
import type { OutputStore } from "../../call/ports.ts";
import { storeFull } from "../refusals.ts";
import { unavailable } from "./commit.ts";

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
    // What was written is on disk already: an error of the close loses nothing.
    if (oldest !== undefined) forget(oldest[0]).catch(() => undefined);
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

/** One output. Opened at the first use, created at the first append. */
type OutputFile = ReturnType<typeof openOutputFile>;

/** Opens the output with that path. Appends that arrive during a sync share the next one. */
export function openOutputFile(path: string) {
  let opening: Promise<Opened | undefined> | undefined;
  let waiting: Waiting[] = [];
  let draining: Promise<void> | undefined;
  let reads = 0;

  /** Returns the open file, or opens it. After a missing file or a failure the next use tries again. */
  async function opened(from: (path: string) => Promise<Opened | undefined>): Promise<Opened | undefined> {
    opening ??= from(path);
    const current = opening;
    const result = await current.catch((cause) => {
      if (opening === current) opening = undefined;
      throw unavailable(cause);
    });
    if (result === undefined && opening === current) opening = undefined;
    return result;
  }

  async function drain(): Promise<void> {
    while (waiting.length > 0) {
      const batch = waiting;
      waiting = [];
      const [only] = batch.length === 1 ? batch : [];
      const failed = await write(only?.data ?? Buffer.concat(batch.map(({ data }) => data))).catch(unavailable);
      for (const { resolve, reject } of batch) failed === undefined ? resolve() : reject(failed);
    }
    draining = undefined;
  }

  async function write(data: Uint8Array): Promise<undefined> {
    const output = (await opened(openExisting)) ?? (await opened(make));
    if (output === undefined) throw new Error(`${path} was not created`);
    const { file, size } = output;
    try {
      const end = await writeAll(file, data, size);
      await file.datasync();
      output.size = end;
    } catch (error) {
      // No caller got a promise for these bytes. If the truncation fails, the next append overwrites them.
      await file.truncate(size).catch(() => {});
      throw error;
    }
  }

  return {
    /** Resolves when the bytes are on disk. */
    append: (data: Uint8Array) =>
      new Promise<void>((resolve, reject) => {
        waiting.push({ data, resolve, reject });
        draining ??= drain();
      }),

    /** Reads what is on disk; undefined if nothing was ever appended. */
    async read(offset: number, limit: number): Promise<{ data: Uint8Array; total: number } | undefined> {
      reads += 1;
      try {
        const output = await opened(openExisting);
        if (output === undefined) return undefined;
        const { file, size: total } = output;
        const data = new Uint8Array(Math.max(0, Math.min(limit, total - offset)));
        const { bytesRead } = await file.read(data, 0, data.byteLength, offset);
        return { data: data.subarray(0, bytesRead), total };
      } finally {
        reads -= 1;
      }
    },

    isIdle: () => draining === undefined && reads === 0,

    /** Closes the file after pending writes; the next use opens it again. */
    async close(): Promise<void> {
      await draining;
      const closing = opening;
      opening = undefined;
      await (await closing)?.file.close();
    },
  };
}

interface Opened {
  file: FileHandle;
  /** Number of durable bytes. */
  size: number;
}

interface Waiting {
  data: Uint8Array;
  resolve(): void;
  reject(error: unknown): void;
}

async function openExisting(path: string): Promise<Opened | undefined> {
  const file = await open(path, "r+").catch((error: NodeJS.ErrnoException) => {
    if (error.code === "ENOENT") return undefined;
    throw error;
  });
  return file && { file, size: (await file.stat()).size };
}

/** Creates the file and syncs its directories too, since bytes without a name are lost. */
async function make(path: string): Promise<Opened> {
  const directory = dirname(path);
  await mkdir(directory, { recursive: true, mode: 0o700 });
  const file = await open(path, "wx+", 0o600);
  await Promise.all([directory, dirname(directory), dirname(dirname(directory))].map(syncDirectory));
  return { file, size: 0 };
}

/** Makes the names in a directory durable. */
export async function syncDirectory(path: string): Promise<void> {
  const directory = await open(path, "r");
  await directory.sync().finally(() => directory.close());
}

async function writeAll(file: FileHandle, data: Uint8Array, position: number): Promise<number> {
  let written = 0;
  while (written < data.byteLength) {
    written += (await file.write(data, written, data.byteLength - written, position + written)).bytesWritten;
  }
  return position + written;
}
