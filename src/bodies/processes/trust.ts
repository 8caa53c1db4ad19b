import { createHash } from "node:crypto";
import { readFileSync, statSync } from "node:fs";
import { mkdir, readFile, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import * as z from "zod";

/** The workspaces whose code may run in the service, by canonical path, each with the digests of what was reviewed. */
export interface Trust {
  /** Returns the digest of the trusted code; undefined if none is trusted. */
  get(workspace: string): Promise<string | undefined>;
  /** Returns the SHA-256 of the trusted policy file; undefined if none is trusted. */
  policyOf(workspace: string): Promise<string | undefined>;
  /** Returns the SHA-256 of each trusted skill, by its path in the workspace; undefined if the workspace is not trusted. */
  skillsOf(workspace: string): Promise<ReadonlyMap<string, string> | undefined>;
  /** Returns the path of the record, which changes with it. */
  fileOf(workspace: string): string;
  /** Trusts code by its digest; `policy` is the SHA-256 of the workspace's policy file, `skills` those of its skills by path. */
  set(workspace: string, digest: string, policy?: string, skills?: Readonly<Record<string, string>>): Promise<void>;
  remove(workspace: string): Promise<void>;
}

const record = z.object({
  directory: z.string(),
  digest: z.string(),
  policy: z.string().optional(),
  skills: z.record(z.string(), z.string()).optional(),
});

/**
 * Creates the reader of the SHA-256 of a workspace's policy file that is trusted; undefined if none is. It reads a record again
 * whenever that has changed; synchronous, since rules are collected synchronously.
 */
export function createTrustedPolicies(storeDirectory: string): (workspace: string) => string | undefined {
  const known = new Map<string, { stamp: string; policy: string | undefined }>();
  return (workspace) => {
    const file = recordFile(storeDirectory, workspace);
    try {
      const stats = statSync(file, { bigint: true, throwIfNoEntry: false });
      if (!stats) return undefined;
      const stamp = [stats.ino, stats.size, stats.mtimeNs, stats.ctimeNs].join();
      const before = known.get(workspace);
      if (before?.stamp === stamp) return before.policy;
      const { directory, policy } = record.parse(JSON.parse(readFileSync(file, "utf8")));
      const trusted = directory === workspace ? policy : undefined;
      known.set(workspace, { stamp, policy: trusted });
      return trusted;
    } catch {
      return undefined;
    }
  };
}

function recordFile(storeDirectory: string, workspace: string): string {
  return join(storeDirectory, `${createHash("sha256").update(workspace).digest("hex")}.json`);
}

/** Stores trust in a directory that no tool may touch, one file for each workspace. */
export function createTrust(storeDirectory: string): Trust {
  const fileOf = (workspace: string) => recordFile(storeDirectory, workspace);
  async function recordOf(workspace: string): Promise<Partial<z.infer<typeof record>>> {
    try {
      const found = record.parse(JSON.parse(await readFile(fileOf(workspace), "utf8")));
      return found.directory === workspace ? found : {};
    } catch {
      // A record that is missing or cannot be read grants nothing.
      return {};
    }
  }
  return {
    fileOf,
    get: async (workspace) => (await recordOf(workspace)).digest,
    policyOf: async (workspace) => (await recordOf(workspace)).policy,
    async skillsOf(workspace) {
      const { digest, skills = {} } = await recordOf(workspace);
      return digest === undefined ? undefined : new Map(Object.entries(skills));
    },
    async set(workspace, digest, policy, skills = {}) {
      await mkdir(storeDirectory, { recursive: true, mode: 0o700 });
      await writeFile(
        fileOf(workspace),
        `${JSON.stringify({ directory: workspace, digest, ...(policy !== undefined && { policy }), skills })}\n`,
        { mode: 0o600 },
      );
    },
    async remove(workspace) {
      await rm(fileOf(workspace), { force: true });
    },
  };
}
