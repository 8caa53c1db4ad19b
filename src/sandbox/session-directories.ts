import { existsSync, mkdirSync, renameSync, rmSync, utimesSync } from "node:fs";
import { readdir, rm, stat } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { AgentConfinement } from "./confinement.ts";
import { cacheDirectories } from "./home-layout.ts";
import type { LayerShare } from "./layers.ts";

/**
 * Directories of session trees, whose commands share them: one for temporary files, which they see as /tmp and /var/tmp, and one
 * for the caches of tools, to which links in the home directory lead.
 */
export interface SessionDirectories {
  /**
   * Returns the share that replaces the temporary directories and /run; empty ones for a command without a session.
   */
  share(
    confinement: Pick<AgentConfinement, "profile" | "network">,
    session: string | undefined,
    links?: CacheLinks,
  ): LayerShare;
  /** Removes those of sessions that no longer exist, and those that no command has used for a day. */
  sweep(exists: (session: string) => Promise<boolean>): Promise<void>;
}

/** The home directory, and the names of the caches in it that become links. */
export interface CacheLinks {
  readonly home: string;
  readonly caches: readonly string[];
}

/** The directories that all programs of a machine share. */
export const sharedTemporary: ReadonlySet<string> = new Set([tmpdir(), "/tmp", "/var/tmp"]);

/** Creates the directories below `root`; without it, commands get empty ones. */
export function createSessionDirectories(root: string | undefined, maxIdleMs = 86_400_000): SessionDirectories {
  return {
    share({ profile, network }, session, links) {
      const isKept = root !== undefined && session !== undefined && profile !== "read-only";
      const own = isKept ? openDirectories(join(root, nameOf(session))) : undefined;
      return {
        inMemory: ["/run", ...(own ? [] : sharedTemporary)],
        args: {
          base: [
            ...[...sharedTemporary].flatMap((path) => (own ? ["--bind", own.temporary, path] : ["--tmpfs", path])),
            ...["--tmpfs", "/run"],
            ...(own && links ? cacheArgs(own.caches, links) : []),
            ...(network === "open" ? resolverFiles : []).flatMap((path) => ["--ro-bind-try", path, path]),
          ],
        },
      };
    },
    async sweep(exists) {
      if (root === undefined) return;
      for (const name of await readdir(root).catch(() => [])) {
        const { mtimeMs } = await stat(join(root, name));
        if (Date.now() - mtimeMs < maxIdleMs && (await exists(sessionOf(name)))) continue;
        await rm(join(root, name), { recursive: true, force: true, maxRetries: 3 });
      }
    },
  };
}

/** Mounts the caches once, with a link to each: a mount costs more time, and a link can be made in no directory of commands. */
const cacheArgs = (directory: string, { home, caches }: CacheLinks) => [
  ...["--bind", directory, cachesInside],
  ...caches.flatMap((name) => ["--symlink", join(cachesInside, name), join(home, name)]),
];

const cachesInside = "/run/toolgate-caches";

/** Creates the directories if they do not exist, and marks them as used. Only their parent keeps other users out. */
function openDirectories(path: string): { temporary: string; caches: string } {
  const temporary = join(path, "tmp");
  const caches = join(path, "caches");
  mkdirSync(temporary, { recursive: true, mode: 0o700 });
  // Only once, since commands could replace parts of it by links.
  if (!existsSync(caches)) {
    const made = `${caches}.new`;
    rmSync(made, { recursive: true, force: true });
    for (const name of cacheDirectories) mkdirSync(join(made, name), { recursive: true, mode: 0o700 });
    renameSync(made, caches);
  }
  const now = new Date();
  utimesSync(path, now, now);
  return { temporary, caches };
}

/** A session ID as the name of a file, whatever its characters. */
const nameOf = (session: string) => Buffer.from(session).toString("base64url");
const sessionOf = (name: string) => Buffer.from(name, "base64url").toString();

/** Files to which /etc/resolv.conf leads on many machines. */
const resolverFiles = ["/run/systemd/resolve", "/run/resolvconf", "/run/NetworkManager/resolv.conf"];
