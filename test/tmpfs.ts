import { execFileSync } from "node:child_process";
import { closeSync, mkdirSync, openSync, rmSync, statfsSync, writeSync } from "node:fs";
import { join } from "node:path";
import { onTestFinished } from "vitest";

/** A small disk, mounted for one test. */
export interface SmallDisk {
  /** Bytes that are free. */
  free(): number;
  /** Writes a file of the bytes that are free now, but this many; 0 fills the disk. What others free meanwhile stays free. */
  fill(leave: number): void;
  /** Removes what `fill` wrote. */
  empty(): void;
}

/** Mounts a tmpfs of that size, for any number of files or at most this one; it is unmounted after the test, before the clean-ups that were registered earlier. */
export function mountSmallDisk(path: string, megabytes: number, maxFiles = 0): SmallDisk {
  mkdirSync(path, { recursive: true });
  try {
    execFileSync("mount", ["-t", "tmpfs", "-o", `size=${megabytes}m,nr_inodes=${maxFiles}`, "tmpfs", path], {
      stdio: "pipe",
    });
  } catch (cause) {
    throw new Error(`this test mounts a tmpfs at ${path}, which needs root and CAP_SYS_ADMIN: run it as root`, {
      cause,
    });
  }
  onTestFinished(() => void execFileSync("umount", ["--lazy", path]));
  const ballast = join(path, "ballast");
  const free = () => {
    const { bavail, bsize } = statfsSync(path);
    return bavail * bsize;
  };
  return {
    free,
    fill(leave) {
      const file = openSync(ballast, "a");
      try {
        for (let rest = free() - leave; rest > 0; rest -= 65_536) writeSync(file, Buffer.alloc(Math.min(rest, 65_536)));
      } catch (error) {
        if (!(error instanceof Error && "code" in error && error.code === "ENOSPC")) throw error;
      } finally {
        closeSync(file);
      }
    },
    empty: () => rmSync(ballast, { force: true }),
  };
}
