import { createHash } from "node:crypto";
import { statSync } from "node:fs";
import { readFile } from "node:fs/promises";
import { dirname } from "node:path";

/** Detects changes of files and directories by their metadata. */
export interface FileStamp {
  /**
   * Reports whether nothing has changed since `take`. It is false while a change may not show in the metadata yet. Stamps that are
   * checked at the same moment share `seen`.
   */
  isCurrent(seen?: PathStamps): boolean;
  /** Notes how these paths are now; `readSince` is the time before they were read, in milliseconds. */
  take(paths: Iterable<string>, readSince: number): void;
}

/** The metadata of paths at one moment. */
export type PathStamps = Map<string, PathStamp>;

interface PathStamp {
  text: string;
  /** Time of the last change, in milliseconds; 0 for a path that does not exist. */
  changed: number;
}

/** The tick of file systems' timestamps: two changes in one tick have the same stamp. */
const tickMs = 1_000;

/** Creates a stamp that is not current. */
export function createFileStamp(): FileStamp {
  let paths: readonly string[] = [];
  let taken: string | undefined;
  let isSettled = false;
  return {
    isCurrent: (seen = new Map()) => isSettled && stampOf(paths, seen).text === taken,
    take(now, readSince) {
      paths = [...now];
      const { text, changed } = stampOf(paths, new Map());
      taken = text;
      isSettled = changed < readSince - tickMs;
    },
  };
}

function stampOf(paths: readonly string[], seen: PathStamps): PathStamp {
  const stamps = paths.map((path) => stampOfPath(path, seen));
  return {
    text: stamps.map(({ text }) => text).join("\n"),
    changed: Math.max(0, ...stamps.map(({ changed }) => changed)),
  };
}

/** Reads the metadata of a path once; below a directory that does not exist there is nothing to read. */
function stampOfPath(path: string, seen: PathStamps): PathStamp {
  const known = seen.get(path) ?? (seen.get(dirname(path)) === missing ? missing : readStamp(path));
  seen.set(path, known);
  return known;
}

function readStamp(path: string): PathStamp {
  try {
    const stats = statSync(path, { bigint: true, throwIfNoEntry: false });
    if (stats === undefined) return missing;
    const text = [stats.dev, stats.ino, stats.size, stats.mtimeNs, stats.ctimeNs].join();
    return { text, changed: Number(stats.ctimeMs) };
  } catch (cause) {
    return { text: cause instanceof Error && "code" in cause ? String(cause.code) : String(cause), changed: 0 };
  }
}

const missing: PathStamp = { text: "none", changed: 0 };

/** Returns the SHA-256 of files as they are now, by path; an empty text for those that cannot be read. */
export async function hashFiles(paths: readonly string[]): Promise<ReadonlyMap<string, string>> {
  const hash = async (path: string) => await readFile(path).then(sha256, () => "");
  return new Map(await Promise.all(paths.map(async (path) => [path, await hash(path)] as const)));
}

const sha256 = (content: Uint8Array) => createHash("sha256").update(content).digest("hex");
