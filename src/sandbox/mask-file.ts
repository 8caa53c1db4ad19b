import { closeSync, lstatSync, openSync } from "node:fs";

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
