import { createHash } from "node:crypto";
import { mkdir, readFile, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import * as z from "zod";

/** Whose code may run in the service: workspaces by canonical path, each with the code that was looked at. */
export interface Trust {
  /** The digest of the code that is trusted; undefined if none is. */
  get(directory: string): Promise<string | undefined>;
  set(directory: string, digest: string): Promise<void>;
  remove(directory: string): Promise<void>;
}

const record = z.object({ directory: z.string(), digest: z.string() });

/** Keeps trust in a folder of the data directory, which no tool may touch: a file for each workspace. */
export function createTrust(folder: string): Trust {
  const fileOf = (directory: string) => join(folder, `${createHash("sha256").update(directory).digest("hex")}.json`);
  return {
    async get(directory) {
      try {
        const read = record.parse(JSON.parse(await readFile(fileOf(directory), "utf8")));
        return read.directory === directory ? read.digest : undefined;
      } catch {
        // None, or none that can be read: nothing is trusted.
        return undefined;
      }
    },
    async set(directory, digest) {
      await mkdir(folder, { recursive: true, mode: 0o700 });
      await writeFile(fileOf(directory), `${JSON.stringify({ directory, digest })}\n`, { mode: 0o600 });
    },
    async remove(directory) {
      await rm(fileOf(directory), { force: true });
    },
  };
}
