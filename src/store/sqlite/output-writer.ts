import { type FileHandle, mkdir, open } from "node:fs/promises";
import { dirname } from "node:path";
import { unavailable } from "./commit.ts";

/** Appends to one file. */
export interface OutputWriter {
  /** Resolves when the bytes are on disk. */
  append(data: Uint8Array): Promise<void>;
  idle(): boolean;
  /** Closes the file after what is still being written; a later append opens it again. */
  close(): Promise<void>;
}

/** Opens the file with the first append. Appends that come while one is being synced share the next sync. */
export function createOutputWriter(path: string): OutputWriter {
  let waiting: Waiting[] = [];
  let writing: Promise<void> | undefined;
  let open: { file: FileHandle; size: number } | undefined;

  async function drain(): Promise<void> {
    while (waiting.length > 0) {
      const batch = waiting;
      waiting = [];
      await write(batch).then(
        () => {
          for (const { resolve } of batch) resolve();
        },
        (cause) => {
          for (const { reject } of batch) reject(unavailable(cause));
        },
      );
    }
    writing = undefined;
  }

  async function write(batch: Waiting[]): Promise<void> {
    open ??= await openFile(path);
    const { file, size } = open;
    try {
      const end = await writeAll(file, Buffer.concat(batch.map(({ data }) => data)), size);
      await file.datasync();
      open.size = end;
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
        writing ??= drain();
      }),
    idle: () => writing === undefined,
    async close() {
      await writing;
      const closing = open?.file;
      open = undefined;
      await closing?.close();
    },
  };
}

interface Waiting {
  data: Uint8Array;
  resolve(): void;
  reject(error: unknown): void;
}

/** Opens or makes the file; a new one's name is synced too, since bytes without a name are lost. */
async function openFile(path: string): Promise<{ file: FileHandle; size: number }> {
  const existing = await open(path, "r+").catch(() => undefined);
  if (existing !== undefined) return { file: existing, size: (await existing.stat()).size };
  const folder = dirname(path);
  await mkdir(folder, { recursive: true, mode: 0o700 });
  const file = await open(path, "wx", 0o600);
  await Promise.all([folder, dirname(folder)].map(syncFolder));
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
