import { createHash } from "node:crypto";
import { mkdir, readFile, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import * as z from "zod";

/** The workspaces whose code may run in the service, by canonical path, each with the digest of the code that was reviewed. */
export interface Trust {
  /** Returns the digest of the trusted code; undefined if none is trusted. */
  get(workspace: string): Promise<string | undefined>;
  /** Returns the path of the record, which changes with it. */
  fileOf(workspace: string): string;
  set(workspace: string, digest: string): Promise<void>;
  remove(workspace: string): Promise<void>;
}

const record = z.object({ directory: z.string(), digest: z.string() });

/** Stores trust in a directory that no tool may touch, one file for each workspace. */
export function createTrust(storeDirectory: string): Trust {
  const fileOf = (workspace: string) =>
    join(storeDirectory, `${createHash("sha256").update(workspace).digest("hex")}.json`);
  return {
    fileOf,
    async get(workspace) {
      try {
        const { directory, digest } = record.parse(JSON.parse(await readFile(fileOf(workspace), "utf8")));
        return directory === workspace ? digest : undefined;
      } catch {
        // A record that is missing or cannot be read grants nothing.
        return undefined;
      }
    },
    async set(workspace, digest) {
      await mkdir(storeDirectory, { recursive: true, mode: 0o700 });
      await writeFile(fileOf(workspace), `${JSON.stringify({ directory: workspace, digest })}\n`, { mode: 0o600 });
    },
    async remove(workspace) {
      await rm(fileOf(workspace), { force: true });
    },
  };
}
