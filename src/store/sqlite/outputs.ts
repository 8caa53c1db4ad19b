import { open, readdir, rm, stat } from "node:fs/promises";
import { join } from "node:path";
import type { OutputStore } from "../../call/ports.ts";
import { unavailable } from "./commit.ts";
import { createOutputWriter, type OutputWriter } from "./output-writer.ts";

/** Outputs as files, and what the sweep needs of them. */
export interface OutputFiles extends OutputStore {
  /** Outputs to which nothing was written since then. */
  unwrittenSince(time: number): Promise<{ root: string; id: string }[]>;
  /** Removes all outputs of a session tree. */
  removeTree(root: string): Promise<void>;
  close(): Promise<void>;
}

/** Keeps each output in a file of its own, `<directory>/<root>/<id>`; what `append` resolved for is on disk. */
export function createOutputs(directory: string): OutputFiles {
  // In order of use. A writer that is in use is never closed, however many there are.
  const writers = new Map<string, OutputWriter>();

  function writer(path: string): OutputWriter {
    const found = writers.get(path) ?? createOutputWriter(path);
    writers.delete(path);
    writers.set(path, found);
    for (const [other, { idle, close }] of writers) {
      if (writers.size <= writersKept) break;
      if (other === path || !idle()) continue;
      writers.delete(other);
      void close();
    }
    return found;
  }

  async function forget(path: string): Promise<void> {
    const found = writers.get(path);
    writers.delete(path);
    await found?.close();
  }

  function pathOf(root: string, id: string): string {
    if (!name.test(root) || !name.test(id)) throw new Error(`an output cannot be named ${root}/${id}: use ${name}`);
    return join(directory, root, id);
  }

  return {
    append: (root, id, data) => writer(pathOf(root, id)).append(data),

    async read(root, id, offset, limit) {
      if (!name.test(root) || !name.test(id)) return undefined;
      const file = await orUndefined(open(pathOf(root, id), "r"));
      if (file === undefined) return undefined;
      try {
        const total = (await file.stat()).size;
        const data = new Uint8Array(Math.max(0, Math.min(limit, total - offset)));
        const { bytesRead } = await file.read(data, 0, data.byteLength, offset);
        return { data: data.subarray(0, bytesRead), total };
      } finally {
        await file.close();
      }
    },

    async remove(root, id) {
      const path = pathOf(root, id);
      await forget(path);
      await rm(path, { force: true });
    },

    async removeTree(root) {
      const below = join(directory, root, "/");
      await Promise.all([...writers.keys()].filter((path) => path.startsWith(below)).map(forget));
      await rm(below, { recursive: true, force: true });
    },

    async unwrittenSince(time) {
      const stale: { root: string; id: string }[] = [];
      for (const root of (await orUndefined(readdir(directory))) ?? []) {
        for (const id of (await orUndefined(readdir(join(directory, root)))) ?? []) {
          const found = await orUndefined(stat(join(directory, root, id)));
          if (found !== undefined && found.mtimeMs <= time) stale.push({ root, id });
        }
      }
      return stale;
    },

    async close() {
      await Promise.all([...writers.keys()].map(forget));
    },
  };
}

const name = /^[A-Za-z0-9_-]{1,128}$/;
const writersKept = 64;

/** What a promise gives, or undefined where the file or folder does not exist. */
async function orUndefined<T>(promise: Promise<T>): Promise<T | undefined> {
  try {
    return await promise;
  } catch (error) {
    if (error instanceof Error && "code" in error && error.code === "ENOENT") return undefined;
    throw unavailable(error);
  }
}
