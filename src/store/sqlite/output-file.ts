import { type FileHandle, mkdir, open } from "node:fs/promises";
import { dirname } from "node:path";
import { unavailable } from "./health.ts";

/** One output. Opened at the first use, created at the first append. */
export interface OutputFile {
  /** Resolves when the bytes are on disk. */
  append(data: Uint8Array): Promise<void>;
  /** Reads what is on disk; undefined if nothing was ever appended. */
  read(offset: number, limit: number): Promise<{ data: Uint8Array; total: number } | undefined>;
  isIdle(): boolean;
  /** Closes the file after pending writes; the next use opens it again. */
  close(): Promise<void>;
}

/** Opens the output with that path. Appends that arrive during a sync share the next one. */
export function openOutputFile(path: string): OutputFile {
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
    append: (data) =>
      new Promise((resolve, reject) => {
        waiting.push({ data, resolve, reject });
        draining ??= drain();
      }),

    async read(offset, limit) {
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

    async close() {
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

async function syncDirectory(path: string): Promise<void> {
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
