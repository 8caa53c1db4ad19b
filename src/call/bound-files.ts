import { createHash } from "node:crypto";
import { constants } from "node:fs";
import { access, type FileHandle, open, stat } from "node:fs/promises";
import { join } from "node:path";
import { visible } from "../core/visible.ts";

/** A file to whose content an approval is bound. */
export interface BoundFile {
  absolute: string;
}

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

/** Bytes of a bound file that an approver reads. */
const maxReadBytes = 512 * 1024;

/** Reads a file whose content is still the one that an approval would be bound to, in visible form; undefined if it is another one. */
export async function readBoundFile(
  path: string,
  sha256: string,
): Promise<{ text: string; truncated: boolean; binary: boolean } | undefined> {
  await using file = await open(path, constants.O_RDONLY | constants.O_NONBLOCK).catch(() => undefined);
  if (!file || !(await file.stat()).isFile()) return undefined;
  const hash = createHash("sha256");
  const beginning: Buffer[] = [];
  let size = 0;
  for await (const chunk of file.createReadStream({ autoClose: false })) {
    hash.update(chunk);
    if (size < maxReadBytes) beginning.push(chunk);
    size += chunk.length;
  }
  if (hash.digest("hex") !== sha256) return undefined;
  const truncated = size > maxReadBytes;
  try {
    // Of a character that is cut at the end the decoder emits nothing.
    const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
    const text = decoder.decode(Buffer.concat(beginning).subarray(0, maxReadBytes), { stream: truncated });
    return text.includes("\0")
      ? { text: "", truncated, binary: true }
      : { text: visible(text), truncated, binary: false };
  } catch {
    return { text: "", truncated, binary: true };
  }
}
