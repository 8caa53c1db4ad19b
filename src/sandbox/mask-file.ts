import { closeSync, lstatSync, openSync, rmdirSync, rmSync } from "node:fs";
import { dirname } from "node:path";
import type { Covered } from "./layers.ts";

/**
 * Returns the file to mount over files that may not be read. Nobody can open the first one for reading, also not root; for
 * programs it is a plain file, so that git and archivers report an error and do not store it. The other one is a device.
 */
export function findMaskFile(): string {
  return isUnreadable(writeOnlyFile) ? writeOnlyFile : "/dev/null";
}

const writeOnlyFile = "/sys/bus/platform/drivers_probe";

function isUnreadable(path: string): boolean {
  try {
    if (!lstatSync(path).isFile()) return false;
    closeSync(openSync(path, "r"));
    return false;
  } catch (error) {
    return error instanceof Error && "code" in error && error.code === "EACCES";
  }
}

/** Removes what bubblewrap made to mount on, for masked files that were gone when it started. */
export function removeMountPoints(masked: readonly Covered[], startedMs: number): void {
  for (const { path } of masked) {
    const stats = lstatSync(path, { bigint: true, throwIfNoEntry: false });
    if (!stats?.isFile() || stats.size > 0n || stats.birthtimeMs < startedMs) continue;
    if ((stats.mode & 0o777n) !== mountPointMode) continue;
    rmSync(path, { force: true });
    removeEmptyParents(dirname(path), startedMs);
  }
}

/** The mode of files that bubblewrap makes. */
const mountPointMode = 0o444n;

function removeEmptyParents(directory: string, startedMs: number): void {
  const stats = lstatSync(directory, { throwIfNoEntry: false });
  if (!stats?.isDirectory() || stats.birthtimeMs < startedMs) return;
  try {
    rmdirSync(directory);
  } catch {
    // Something else is in it, so it is not ours alone.
    return;
  }
  removeEmptyParents(dirname(directory), startedMs);
}
