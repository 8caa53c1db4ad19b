import { mkdirSync, utimesSync } from "node:fs";
import { readdir, rm, stat } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { AgentConfinement } from "./confinement.ts";
import type { LayerShare } from "./layers.ts";

/** Directories of temporary files: the commands of a session tree share one, which they see as /tmp and /var/tmp. */
export interface SessionDirectories {
  /** Returns the share that replaces the temporary directories and /run; empty ones for a command without a session. */
  share(confinement: Pick<AgentConfinement, "profile" | "network">, session: string | undefined): LayerShare;
  /** Removes those of sessions that no longer exist, and those that no command has used for a day. */
  sweep(exists: (session: string) => Promise<boolean>): Promise<void>;
}

/** The directories that all programs of a machine share. */
export const sharedTemporary: ReadonlySet<string> = new Set([tmpdir(), "/tmp", "/var/tmp"]);

/** Creates the directories below `root`; without it, commands get empty ones. */
export function createSessionDirectories(root: string | undefined, maxIdleMs = 86_400_000): SessionDirectories {
  return {
    share({ profile, network }, session) {
      const isKept = root !== undefined && session !== undefined && profile !== "read-only";
      const directory = isKept ? openDirectory(join(root, nameOf(session))) : undefined;
      return {
        args: {
          base: [
            ...[...sharedTemporary].flatMap((path) => (directory ? ["--bind", directory, path] : ["--tmpfs", path])),
            ...["--tmpfs", "/run"],
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

/** Creates the directory if it does not exist, and marks it as used. Only its parent keeps other users out. */
function openDirectory(path: string): string {
  mkdirSync(path, { recursive: true, mode: 0o700 });
  const now = new Date();
  utimesSync(path, now, now);
  return path;
}

/** A session ID as the name of a file, whatever its characters. */
const nameOf = (session: string) => Buffer.from(session).toString("base64url");
const sessionOf = (name: string) => Buffer.from(name, "base64url").toString();

/** Files to which /etc/resolv.conf leads on many machines. */
const resolverFiles = ["/run/systemd/resolve", "/run/resolvconf", "/run/NetworkManager/resolv.conf"];
