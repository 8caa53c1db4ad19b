import { readdirSync, rmSync } from "node:fs";
import { join } from "node:path";

/**
 * Removes everything in a directory. Entries may appear and vanish meanwhile: a sandbox makes placeholders for protected paths in
 * the workspace, and removes them when the command or tool process ends.
 */
export function emptyDirectory(directory: string, except: readonly string[] = []): void {
  for (const name of readdirSync(directory)) {
    if (except.includes(name)) continue;
    rmSync(join(directory, name), { recursive: true, force: true, maxRetries: 10, retryDelay: 50 });
  }
}
