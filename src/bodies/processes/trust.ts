import { createHash, randomUUID } from "node:crypto";
import { readFileSync, statSync } from "node:fs";
import { lchown, mkdir, readFile, rename, rm, stat, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import * as z from "zod";
import { readRegularFile } from "../../core/read-files.ts";

/** The workspaces whose code may run in the service, by canonical path, each with the digests of what was reviewed. */
export type Trust = ReturnType<typeof createTrust>;

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
export function createTrust(storeDirectory: string) {
  const fileOf = (workspace: string) => recordFile(storeDirectory, workspace);
  async function recordOf(workspace: string): Promise<Partial<z.infer<typeof record>>> {
    const text = await readFile(fileOf(workspace), "utf8").catch((error: NodeJS.ErrnoException) => {
      if (error.code !== "ENOENT") throw error;
    });
    if (text === undefined) return {};
    try {
      const found = record.parse(JSON.parse(text));
      return found.directory === workspace ? found : {};
    } catch (cause) {
      throw new Error(`the record of trust is damaged; run: toolgate trust ${workspace}`, { cause });
    }
  }
  /** For what trust only adds: a record that cannot be read grants nothing. */
  const grantedBy = (workspace: string) => recordOf(workspace).catch((): Awaited<ReturnType<typeof recordOf>> => ({}));
  return {
    /** Returns the path of the record, which changes with it. */
    fileOf,
    /** Returns the digest of the trusted code; undefined if none is trusted. Throws if that is unknown: trusted code may guard calls. */
    get: async (workspace: string): Promise<string | undefined> => (await recordOf(workspace)).digest,
    /** Returns the SHA-256 of the trusted policy file; undefined if none is trusted. */
    policyOf: async (workspace: string): Promise<string | undefined> => (await grantedBy(workspace)).policy,
    /** Returns the SHA-256 of each trusted skill, by its path in the workspace; undefined if the workspace is not trusted. */
    async skillsOf(workspace: string): Promise<ReadonlyMap<string, string> | undefined> {
      const { digest, skills = {} } = await grantedBy(workspace);
      return digest === undefined ? undefined : new Map(Object.entries(skills));
    },
    /** Trusts code by its digest; `policy` is the SHA-256 of the workspace's policy file, `skills` those of its skills by path. */
    async set(workspace: string, digest: string, policy?: string, skills = {}): Promise<void> {
      await mkdir(storeDirectory, { recursive: true, mode: 0o700 });
      const next = `${fileOf(workspace)}.${randomUUID()}.new`;
      await writeFile(
        next,
        `${JSON.stringify({ directory: workspace, digest, ...(policy !== undefined && { policy }), skills })}\n`,
        { mode: 0o600, flag: "wx", flush: true },
      );
      // Run by root, the command must leave what the service can read.
      const { uid, gid } = await stat(dirname(storeDirectory));
      if (process.getuid?.() === 0) for (const path of [storeDirectory, next]) await lchown(path, uid, gid);
      await rename(next, fileOf(workspace));
    },
    async remove(workspace: string): Promise<void> {
      await rm(fileOf(workspace), { force: true });
    },
  };
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

/** Creates a stamp that is not current. It detects changes of files and directories by their metadata. */
export function createFileStamp() {
  let paths: readonly string[] = [];
  let taken: string | undefined;
  let isSettled = false;
  return {
    /**
     * Reports whether nothing has changed since `take`. It is false while a change may not show in the metadata yet. Stamps that are
     * checked at the same moment share `seen`.
     */
    isCurrent: (seen = new Map()): boolean => isSettled && stampOf(paths, seen).text === taken,
    /** Notes how these paths are now; `readSince` is the time before they were read, in milliseconds. */
    take(now: Iterable<string>, readSince: number): void {
      paths = [...now];
      const { text, changed } = stampOf(paths, new Map());
      taken = text;
      isSettled = changed < readSince - tickMs;
    },
  };
}

function stampOf(paths: readonly string[], seen: PathStamps): PathStamp {
  const stamps = paths.map((path) => stampOfPath(path, seen));
  // A time that is still to come is of a clock that was set back, and no later change has it.
  const next = Date.now() + tickMs;
  return {
    text: stamps.map(({ text }) => text).join("\n"),
    changed: Math.max(0, ...stamps.map(({ changed }) => (changed > next ? 0 : changed))),
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

/** Bytes of a file of code up to which it is read. */
export const maxCodeFileBytes = 512 * 1_048_576;

/** Returns the SHA-256 of files as they are now, by path; an empty text for those that cannot be read. */
export async function hashFiles(paths: readonly string[]): Promise<ReadonlyMap<string, string>> {
  const hash = async (path: string) => await readRegularFile(path, maxCodeFileBytes).then(sha256, () => "");
  return new Map(await Promise.all(paths.map(async (path) => [path, await hash(path)] as const)));
}

const sha256 = (content: Uint8Array) => createHash("sha256").update(content).digest("hex");
