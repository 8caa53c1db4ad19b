import { createHash } from "node:crypto";
import {
  type BigIntStats,
  closeSync,
  constants,
  fstatSync,
  fsync,
  lstatSync,
  openSync,
  readlinkSync,
  readSync,
  read as readWith,
  realpathSync,
} from "node:fs";
import { basename, join } from "node:path";
import { promisify } from "node:util";
import { ChangedAfterApproval, ToolFailure } from "./errors.ts";
import type { ResolvedPath } from "./path-asks.ts";

/** A file or directory that is open for reading, with its state when it was opened. */
export interface OpenFile extends Disposable {
  readonly fd: number;
  readonly stats: BigIntStats;
  /** Reads the whole content; throws `ToolFailure` for a directory. */
  bytes(): Promise<Buffer>;
  /** Reads the whole content as UTF-8; throws `ToolFailure` for a directory. */
  text(): Promise<string>;
}

/**
 * Opens the file or directory that a path was resolved to; undefined if there is none. Refuses everything that could block or
 * have effects when opened (pipes, devices, sockets), and paths that were replaced by a link. It is synchronous: the path was
 * just resolved, so each step takes microseconds.
 */
export function openFile({
  absolute,
  otherNames,
}: Pick<ResolvedPath, "absolute" | "otherNames">): OpenFile | undefined {
  try {
    const before = lstatSync(absolute);
    if (before.isSymbolicLink()) throw replaced(absolute);
    if (!before.isFile() && !before.isDirectory()) throw special(absolute);
    // Non-blocking: a pipe may replace the file before it is opened.
    const fd = openSync(absolute, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
    try {
      const stats = fstatSync(fd, { bigint: true });
      if (!stats.isFile() && !stats.isDirectory()) throw special(absolute);
      if (location(fd, absolute) !== absolute) throw replaced(absolute);
      // A hard link passes the check of its name, but rules may have judged its file under another name.
      if (stats.isFile() && stats.nlink > 1n && !otherNames) throw replaced(absolute);
      const bytes = () => contentOf({ fd, stats }, absolute);
      return { fd, stats, bytes, text: async () => (await bytes()).toString(), [Symbol.dispose]: () => closeSync(fd) };
    } catch (error) {
      closeSync(fd);
      throw error;
    }
  } catch (error) {
    return missing(error, absolute);
  }
}

async function contentOf(file: Pick<OpenFile, "fd" | "stats">, absolute: string): Promise<Buffer> {
  if (file.stats.isDirectory()) throw new ToolFailure(`${absolute} is a directory, not a file. Name a file.`);
  const maxBytes = Math.max(Number(file.stats.size), maxGrownBytes);
  const tooLarge = `${absolute} grows while it is read. Read it again when nothing writes to it.`;
  return (await readBounded(bytesOf(file), { maxBytes, tooLarge })).content;
}

/** Size up to which a file may grow while it is read. */
const maxGrownBytes = 4 * 1024 * 1024;

/** An open directory: work in it happens there, even if its path is replaced. */
export interface OpenDirectory extends Disposable {
  /** A path that always leads to it, through /proc; the plain path on systems without that. */
  readonly path: string;
  /** Throws `ChangedAfterApproval` if its path leads elsewhere now. */
  check(): void;
  /** Resolves when the names in it are on disk; at once on a file system that cannot sync a directory. */
  sync(): Promise<void>;
}

/** Opens the directory of a canonical path; throws `ChangedAfterApproval` if the path leads elsewhere, and the errors of `open`. */
export function openDirectory(absolute: string): OpenDirectory {
  const fd = openDirectoryAt(absolute);
  const check = () => {
    // A link at its end was not followed, so only a link above it can lead elsewhere.
    if (location(fd, absolute) !== absolute) throw replaced(absolute);
  };
  try {
    check();
  } catch (error) {
    closeSync(fd);
    throw error;
  }
  const path = process.platform === "linux" ? `/proc/self/fd/${fd}` : absolute;
  return { path, check, sync: () => syncDirectory(fd), [Symbol.dispose]: () => closeSync(fd) };
}

async function syncDirectory(fd: number): Promise<void> {
  await syncLater(fd).catch((error: NodeJS.ErrnoException) => {
    if (error.code !== "EINVAL" && error.code !== "ENOTSUP") throw error;
  });
}

function openDirectoryAt(absolute: string): number {
  try {
    return openSync(absolute, constants.O_RDONLY | constants.O_DIRECTORY | constants.O_NOFOLLOW);
  } catch (error) {
    if (lstatSync(absolute).isSymbolicLink()) throw replaced(absolute);
    throw error;
  }
}

/** Returns the path of a child of an open directory, by the last part of `child`. */
export function inDirectory({ path }: OpenDirectory, child: string): string {
  return join(path, basename(child));
}

/** Reads at most `limit` bytes at an offset; none at the end. */
export type ReadAt = (offset: number, limit: number) => Promise<Uint8Array>;

/** Reads everything once, in chunks, and returns its SHA-256 in hex. */
export async function readThrough(
  read: ReadAt,
  onChunk: (chunk: Uint8Array) => unknown,
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

/** Reads the whole content, with its SHA-256 in hex; throws `tooLarge` beyond `maxBytes`, also for a file that grows meanwhile. */
export async function readBounded(
  read: ReadAt,
  { maxBytes, tooLarge }: { maxBytes: number; tooLarge: string },
  signal?: AbortSignal,
): Promise<{ content: Buffer; sha256: string }> {
  const chunks: Uint8Array[] = [];
  let size = 0;
  const add = (chunk: Uint8Array) => {
    size += chunk.length;
    if (size > maxBytes) throw new ToolFailure(tooLarge);
    chunks.push(chunk);
  };
  const sha256 = await readThrough(read, add, signal);
  return { content: Buffer.concat(chunks), sha256 };
}

/** Maximum size that is read and written synchronously, since the thread pool takes longer. */
export const maxSyncBytes = 65_536;
const readLater = promisify(readWith);
const syncLater = promisify(fsync);

/** Creates the reader of an open file. */
export function bytesOf({ fd, stats }: Pick<OpenFile, "fd" | "stats">): ReadAt {
  // A file of size 0 may be one of the kernel, whose reads may block.
  const isSmall = stats.size > 0n && stats.size <= maxSyncBytes;
  return async (offset, limit) => {
    const left = Number(stats.size) - offset;
    // What a file has grown by since it was opened may be large.
    const isSync = isSmall && left >= 0;
    // One byte more than is left, to notice that the file has grown.
    const length = isSync ? Math.min(limit, left + 1) : limit;
    const buffer = Buffer.allocUnsafe(length);
    const read = isSync
      ? readSync(fd, buffer, 0, length, offset)
      : (await readLater(fd, buffer, 0, length, offset)).bytesRead;
    return buffer.subarray(0, read);
  };
}

/** Returns the present path of an open file; without /proc, the path to which `absolute` resolves now. */
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
