import { createHash } from "node:crypto";
import { constants } from "node:fs";
import { access, type FileHandle, open, stat } from "node:fs/promises";
import { join } from "node:path";

/** Finds the file that a shell runs for a name: the first executable of that name in the directories of a PATH. */
export async function findProgram(name: string, searchPath: string): Promise<string | undefined> {
  if (name === "" || name.includes("/")) return undefined;
  for (const directory of searchPath.split(":").filter((directory) => directory !== "")) {
    const path = join(directory, name);
    const isFile = await stat(path).then(
      (found) => found.isFile(),
      () => false,
    );
    if (isFile && (await canRun(path))) return path;
  }
  return undefined;
}

async function canRun(path: string): Promise<boolean> {
  return await access(path, constants.X_OK).then(
    () => true,
    () => false,
  );
}

/** Hashes of file contents. */
export interface FileHashes {
  /** SHA-256 of a regular file's content, or a word for why there is none: a file that appears or disappears is a change too. */
  of(path: string): Promise<string>;
}

/** Size from which a file is not read again while its metadata is unchanged. */
const minCachedBytes = 1_048_576;
const maxCached = 256;

/** Creates an empty cache of file hashes. */
export function createFileHashes(): FileHashes {
  const cache = new Map<string, string>();
  return {
    async of(path) {
      try {
        // Non-blocking: opening a FIFO would otherwise wait for a writer.
        await using file = await open(path, constants.O_RDONLY | constants.O_NONBLOCK);
        const found = await file.stat({ bigint: true });
        if (!found.isFile()) return "not a file";
        if (found.size < minCachedBytes) return await hashOf(file);
        const { dev, ino, size, mtimeNs, ctimeNs } = found;
        const name = [dev, ino, size, mtimeNs, ctimeNs].join(" ");
        const hash = cache.get(name) ?? (await hashOf(file));
        if (cache.size >= maxCached) cache.clear();
        cache.set(name, hash);
        return hash;
      } catch (cause) {
        return cause instanceof Error && "code" in cause ? String(cause.code) : "unreadable";
      }
    },
  };
}

async function hashOf(file: FileHandle): Promise<string> {
  const hash = createHash("sha256");
  for await (const chunk of file.createReadStream({ autoClose: false })) hash.update(chunk);
  return hash.digest("hex");
}
