import { statSync } from "node:fs";

/** Detects changes of files and directories by their metadata. */
export interface FileStamp {
  /** Reports whether nothing has changed since `take`. It is false while a change may not show in the metadata yet. */
  isCurrent(): boolean;
  /** Notes how these paths are now; `readSince` is the time before they were read, in milliseconds. */
  take(paths: Iterable<string>, readSince: number): void;
}

/** The tick of file systems' timestamps: two changes in one tick have the same stamp. */
const tickMs = 1_000;

/** Creates a stamp that is not current. */
export function createFileStamp(): FileStamp {
  let paths: readonly string[] = [];
  let taken: string | undefined;
  let isSettled = false;
  return {
    isCurrent: () => isSettled && stampOf(paths).text === taken,
    take(now, readSince) {
      paths = [...now];
      const { text, changed } = stampOf(paths);
      taken = text;
      isSettled = changed < readSince - tickMs;
    },
  };
}

function stampOf(paths: readonly string[]): { text: string; changed: number } {
  let changed = 0;
  const stamps = paths.map((path) => {
    try {
      const stats = statSync(path, { bigint: true, throwIfNoEntry: false });
      if (stats === undefined) return "none";
      changed = Math.max(changed, Number(stats.ctimeMs));
      return [stats.dev, stats.ino, stats.size, stats.mtimeNs, stats.ctimeNs].join();
    } catch (cause) {
      return cause instanceof Error && "code" in cause ? String(cause.code) : String(cause);
    }
  });
  return { text: stamps.join("\n"), changed };
}
