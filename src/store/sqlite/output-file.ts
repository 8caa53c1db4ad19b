import { type FileHandle, mkdir, open } from "node:fs/promises";
import { dirname } from "node:path";
import { unavailable } from "./commit.ts";

/** One output. It is opened when it is first used, and made when it is first appended to. */
export interface OutputFile {
  /** Resolves when the bytes are on disk. */
  append(data: Uint8Array): Promise<void>;
  /** Reads what is on disk; undefined if nothing was ever appended. */
  read(offset: number, limit: number): Promise<{ data: Uint8Array; total: number } | undefined>;
  isIdle(): boolean;
  /** Closes it after what is still being written; it may be used again. */
  close(): Promise<void>;
}

/** The output in the file of that path. Appends that come while one is being synced share the next sync. */
export function openOutputFile(path: string): OutputFile {
  let opening: Promise<Opened | undefined> | undefined;
  let waiting: Waiting[] = [];
  let draining: Promise<void> | undefined;
  let reads = 0;

  /** What is open, or opens it; a file that is not there, or cannot be opened, is looked for again the next time. */
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
    if (output === undefined) throw new Error(`${path} was not made`);
    const { file, size } = output;
    try {
      const end = await writeAll(file, data, size);
      await file.datasync();
      output.size = end;
    } catch (error) {
      // Nobody was told of these bytes; where they cannot be cut off now the next append writes over them.
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
  /** How much of it was promised. */
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

/** Makes the file and syncs its name too, since bytes without a name are lost. */
async function make(path: string): Promise<Opened> {
  const folder = dirname(path);
  await mkdir(folder, { recursive: true, mode: 0o700 });
  const file = await open(path, "wx+", 0o600);
  await Promise.all([folder, dirname(folder), dirname(dirname(folder))].map(syncFolder));
  return { file, size: 0 };
}

async function syncFolder(path: string): Promise<void> {
  const folder = await open(path, "r");
  await folder.sync().finally(() => folder.close());
}

async function writeAll(file: FileHandle, data: Uint8Array, position: number): Promise<number> {
  let written = 0;
  while (written < data.byteLength) {
    written += (await file.write(data, written, data.byteLength - written, position + written)).bytesWritten;
  }
  return position + written;
}
