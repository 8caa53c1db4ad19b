import { join } from "node:path";
import { readRegularFile } from "./read-files.ts";

/** Returns a check if git tracks a path of a repository; undefined if that cannot be known, so that any file may be tracked. */
export async function trackedFiles(top: string): Promise<((path: string) => boolean) | undefined> {
  const paths = await trackedPaths(top);
  return paths && ((path) => paths.has(path));
}

/** Returns the paths that git tracks in a repository; undefined if they cannot be known. */
export async function trackedPaths(top: string): Promise<ReadonlySet<string> | undefined> {
  const index = await readRegularFile(join(top, ".git", "index"), maxIndexBytes).catch(() => undefined);
  return index && pathsOfIndex(index);
}

/** Bytes of an index up to which it is read: some 500,000 files. */
const maxIndexBytes = 64 * 1_048_576;
const headerBytes = 12;
const entryBytes = 62;

/** Reads the paths of a git index of version 2 or 3; undefined for version 4, which compresses them, and for anything else. */
export function pathsOfIndex(index: Buffer): Set<string> | undefined {
  if (index.length < headerBytes || index.toString("latin1", 0, 4) !== "DIRC") return undefined;
  const version = index.readUInt32BE(4);
  if (version !== 2 && version !== 3) return undefined;
  const paths = new Set<string>();
  let at = headerBytes;
  for (let left = index.readUInt32BE(8); left > 0; left--) {
    if (at + entryBytes > index.length) return undefined;
    const isExtended = version === 3 && (index.readUInt16BE(at + 60) & 0x4000) !== 0;
    const start = at + entryBytes + (isExtended ? 2 : 0);
    const end = index.indexOf(0, start);
    if (end === -1) return undefined;
    paths.add(index.toString("utf8", start, end));
    // An entry is padded with 1 to 8 NUL characters to a multiple of 8.
    at += Math.floor((end - at) / 8) * 8 + 8;
  }
  return paths;
}
