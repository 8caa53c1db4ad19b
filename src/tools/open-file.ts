import { createHash } from "node:crypto";
import { constants } from "node:fs";
import { type FileHandle, lstat, open, readlink, realpath } from "node:fs/promises";
import { basename, join } from "node:path";
import { ChangedAfterApproval, ToolFailure } from "../tool/errors.ts";
import type { ResolvedPath } from "../tool/workspace.ts";

/**
 * Opens the file or folder that a path was resolved to; undefined if there is none. Everything that could wait or have
 * effects when opened (pipes, devices, sockets) is refused, and so is what a link has replaced since.
 */
export async function openFile({
  absolute,
  otherNames,
}: Pick<ResolvedPath, "absolute" | "otherNames">): Promise<FileHandle | undefined> {
  try {
    const before = await lstat(absolute);
    if (before.isSymbolicLink()) throw replaced(absolute);
    if (!before.isFile() && !before.isDirectory()) throw special(absolute);
    // Non-blocking, because a pipe may take the file's place before it is opened.
    const handle = await open(absolute, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
    try {
      const opened = await handle.stat();
      if (!opened.isFile() && !opened.isDirectory()) throw special(absolute);
      if ((await location(handle, absolute)) !== absolute) throw replaced(absolute);
      // A hard link has the right name, too, but what it leads to was judged under another one.
      if (opened.isFile() && opened.nlink > 1 && !otherNames) throw replaced(absolute);
      return handle;
    } catch (error) {
      await handle.close();
      throw error;
    }
  } catch (error) {
    return missing(error, absolute);
  }
}

/** A folder that was opened: what is done in it happens there, whatever takes the place of its path. */
export interface OpenFolder extends AsyncDisposable {
  /** A path to it that leads nowhere else; its plain path where the system has none. */
  path: string;
  /** Throws `ChangedAfterApproval` if its path leads elsewhere by now. */
  check(): Promise<void>;
}

/** Opens the folder of a canonical path; throws `ChangedAfterApproval` if that leads elsewhere, and what `open` throws. */
export async function openFolder(absolute: string): Promise<OpenFolder> {
  const handle = await open(absolute, constants.O_RDONLY | constants.O_DIRECTORY | constants.O_NOFOLLOW).catch(
    async (error: unknown) => {
      if ((await lstat(absolute)).isSymbolicLink()) throw replaced(absolute);
      throw error;
    },
  );
  const check = async () => {
    // Opened without following a link at its end, it can only lie elsewhere because of one above it.
    if ((await location(handle, absolute)) !== absolute) throw replaced(absolute);
  };
  try {
    await check();
  } catch (error) {
    await handle.close();
    throw error;
  }
  const path = process.platform === "linux" ? `/proc/self/fd/${handle.fd}` : absolute;
  return { path, check, [Symbol.asyncDispose]: () => handle.close() };
}

/** The path of a child of an open folder, by its name alone. */
export function inFolder({ path }: OpenFolder, child: string): string {
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

/** The bytes of an open file. */
export function bytesOf(handle: FileHandle): ReadAt {
  return async (offset, limit) => {
    const { buffer, bytesRead } = await handle.read(Buffer.allocUnsafe(limit), 0, limit, offset);
    return buffer.subarray(0, bytesRead);
  };
}

/** Where an open file lies, whatever its path has become; without /proc, where its path leads to now. */
function location(handle: FileHandle, absolute: string): Promise<string> {
  return readlink(`/proc/self/fd/${handle.fd}`).catch(() => realpath(absolute));
}

function missing(error: unknown, absolute: string): undefined {
  if (!(error instanceof Error) || !("code" in error)) throw error;
  if (error.code === "ENOENT" || error.code === "ENOTDIR") return undefined;
  if (error.code === "ELOOP") throw replaced(absolute);
  throw new ToolFailure(`Cannot open ${absolute}: ${error.message}`, { cause: error });
}

const special = (absolute: string) =>
  new ToolFailure(`${absolute} is neither a file nor a folder (a pipe, socket or device). Name a regular file.`);
const replaced = (absolute: string) =>
  new ChangedAfterApproval(`${absolute} was replaced after its path was resolved. Call the tool again.`);
