import { createHash } from "node:crypto";
import {
  type BigIntStats,
  closeSync,
  constants,
  fstatSync,
  lstatSync,
  openSync,
  readlinkSync,
  readSync,
  read as readWith,
  realpathSync,
} from "node:fs";
import { basename, join } from "node:path";
import { promisify } from "node:util";
import { ChangedAfterApproval, ToolFailure } from "../../tool/errors.ts";
import type { ResolvedPath } from "../../tool/workspace.ts";

/** A file or directory that was opened for reading, and what it was then. */
export interface OpenFile extends Disposable {
  readonly fd: number;
  readonly stats: BigIntStats;
}

/**
 * Opens the file or directory that a path was resolved to; undefined if there is none. Everything that could wait or have
 * effects when opened (pipes, devices, sockets) is refused, and so is what a link has replaced since. It does not wait: the
 * file system has just answered for the path, and each step takes microseconds.
 */
export function openFile({
  absolute,
  otherNames,
}: Pick<ResolvedPath, "absolute" | "otherNames">): OpenFile | undefined {
  try {
    const before = lstatSync(absolute);
    if (before.isSymbolicLink()) throw replaced(absolute);
    if (!before.isFile() && !before.isDirectory()) throw special(absolute);
    // Non-blocking, because a pipe may take the file's place before it is opened.
    const fd = openSync(absolute, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
    try {
      const stats = fstatSync(fd, { bigint: true });
      if (!stats.isFile() && !stats.isDirectory()) throw special(absolute);
      if (location(fd, absolute) !== absolute) throw replaced(absolute);
      // A hard link has the right name, too, but what it leads to was judged under another one.
      if (stats.isFile() && stats.nlink > 1n && !otherNames) throw replaced(absolute);
      return { fd, stats, [Symbol.dispose]: () => closeSync(fd) };
    } catch (error) {
      closeSync(fd);
      throw error;
    }
  } catch (error) {
    return missing(error, absolute);
  }
}

/** A directory that was opened: what is done in it happens there, whatever takes the place of its path. */
export interface OpenDirectory extends Disposable {
  /** A path to it that leads nowhere else; its plain path where the system has none. */
  readonly path: string;
  /** Throws `ChangedAfterApproval` if its path leads elsewhere by now. */
  check(): void;
}

/** Opens the directory of a canonical path; throws `ChangedAfterApproval` if that leads elsewhere, and what `open` throws. */
export function openDirectory(absolute: string): OpenDirectory {
  const fd = openDirectoryAt(absolute);
  const check = () => {
    // Opened without following a link at its end, it can only lie elsewhere because of one above it.
    if (location(fd, absolute) !== absolute) throw replaced(absolute);
  };
  try {
    check();
  } catch (error) {
    closeSync(fd);
    throw error;
  }
  const path = process.platform === "linux" ? `/proc/self/fd/${fd}` : absolute;
  return { path, check, [Symbol.dispose]: () => closeSync(fd) };
}

function openDirectoryAt(absolute: string): number {
  try {
    return openSync(absolute, constants.O_RDONLY | constants.O_DIRECTORY | constants.O_NOFOLLOW);
  } catch (error) {
    if (lstatSync(absolute).isSymbolicLink()) throw replaced(absolute);
    throw error;
  }
}

/** The path of a child of an open directory, by its name alone. */
export function inDirectory({ path }: OpenDirectory, child: string): string {
  return join(path, basename(child));
}

/** Gives the bytes from an offset on, at most so many; none at the end. */
export type ReadAt = (offset: number, limit: number) => Promise<Uint8Array>;

/** Reads everything once, in chunks, and returns its SHA-256 in hex. */
export async function readThrough(
  read: ReadAt,
  onChunk: (chunk: Uint8Array) => void,
  signal?: AbortSignal,
): Promise<string> {
  const hash = createHash("sha256");
  let offset = 0;
  for (;;) {
    signal?.throwIfAborted();
    const chunk = await read(offset, 65_536);
    if (chunk.length === 0) return hash.digest("hex");
    hash.update(chunk);
    onChunk(chunk);
    offset += chunk.length;
  }
}

/** What is read and written at once: the way through the thread pool takes longer. */
export const smallFile = 65_536;
const readLater = promisify(readWith);

/** The bytes of an open file. */
export function bytesOf({ fd, stats }: OpenFile): ReadAt {
  // What says that it is empty may be a file of the kernel, which may let its reader wait.
  const isSmall = stats.size > 0n && stats.size <= smallFile;
  return async (offset, limit) => {
    // One more than is left, to see that it has not grown.
    const length = isSmall ? Math.min(limit, Math.max(Number(stats.size) - offset, 0) + 1) : limit;
    const buffer = Buffer.allocUnsafe(length);
    const read = isSmall
      ? readSync(fd, buffer, 0, length, offset)
      : (await readLater(fd, buffer, 0, length, offset)).bytesRead;
    return buffer.subarray(0, read);
  };
}

/** Where an open file lies, whatever its path has become; without /proc, where its path leads to now. */
function location(fd: number, absolute: string): string {
  try {
    return readlinkSync(`/proc/self/fd/${fd}`);
  } catch {
    return realpathSync(absolute);
  }
}

function missing(error: unknown, absolute: string): undefined {
  if (!(error instanceof Error) || !("code" in error)) throw error;
  if (error.code === "ENOENT" || error.code === "ENOTDIR") return undefined;
  if (error.code === "ELOOP") throw replaced(absolute);
  throw new ToolFailure(`Cannot open ${absolute}: ${error.message}`, { cause: error });
}

const special = (absolute: string) =>
  new ToolFailure(`${absolute} is neither a file nor a directory (a pipe, socket or device). Name a regular file.`);
const replaced = (absolute: string) =>
  new ChangedAfterApproval(`${absolute} was replaced after its path was resolved. Call the tool again.`);
