import { mkdtempSync, openSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

/** Stores content in a file without a name, so that a crash leaves nothing behind. Returns its descriptor, which the caller closes. */
export function openUnnamed(content: string | Buffer): number {
  const directory = mkdtempSync(join(tmpdir(), "toolgate-file-"));
  try {
    const file = join(directory, "file");
    writeFileSync(file, content);
    return openSync(file, "r");
  } finally {
    rmSync(directory, { recursive: true });
  }
}

/** Opens an unnamed file again: a program that inherits the new descriptor reads from the beginning. The caller closes it. */
export function reopenUnnamed(descriptor: number): number {
  return openSync(`/proc/self/fd/${descriptor}`, "r");
}
