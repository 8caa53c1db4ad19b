import { existsSync, mkdirSync, readFileSync, renameSync, rmSync, statSync, utimesSync } from "node:fs";
import { readdir, rm, stat } from "node:fs/promises";
import { tmpdir } from "node:os";
import { basename, dirname, join } from "node:path";
import { isWithin } from "../core/paths.ts";
import type { AgentConfinement } from "./confinement.ts";
import type { LayerShare } from "./layers.ts";

/** The home directory, and the names of the caches in it that become links. */
export interface CacheLinks {
  readonly home: string;
  readonly caches: readonly string[];
}

/** The directories that all programs of a machine share. */
export const sharedTemporary: ReadonlySet<string> = new Set([tmpdir(), "/tmp", "/var/tmp"]);

/**
 * Creates the directories of session trees below `root`, whose commands share them: one for temporary files, which they see as /tmp
 * and /var/tmp, and one for the caches of tools, to which links in the home directory lead. Without `root`, commands get empty ones.
 */
export function createSessionDirectories(root: string | undefined, maxIdleMs = 86_400_000) {
  return {
    /**
     * Returns the share that replaces the temporary directories and /run; empty ones for a command without a session.
     */
    share(
      { profile, network }: Pick<AgentConfinement, "profile" | "network">,
      session: string | undefined,
      links?: CacheLinks,
    ): LayerShare {
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
    /** Removes those of sessions that no longer exist, and those that no command has used for a day. */
    async sweep(exists: (session: string) => Promise<boolean>): Promise<void> {
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

/** Toolchains below a home directory, where their installers put them. None of these directories holds credentials. */
const toolchains = [
  ...[".nvm", ".fnm", ".volta", ".nodenv", ".n", ".deno/bin", ".bun/bin", ".bun/install/global"],
  ...[".pyenv", ".rye", ".local/pipx", "miniconda3", "anaconda3", "miniforge3", "mambaforge", "micromamba"],
  ...[".rustup", ".cargo/bin", ".cargo/env", "go/bin", ".goenv", ".gvm", "sdk"],
  ...[".rbenv", ".rvm", ".phpenv", ".jenv", ".sdkman", ".jabba", ".ghcup", ".opam", ".juliaup", ".elan"],
  ...["dotnet", "host", "sdk", "shared", "tools"].map((name) => `.dotnet/${name}`),
  ...[".asdf", ".nix-profile", ".krew/bin", ".krew/store", ".poetry/bin", "bin", ".local/bin", ".local/lib"],
  ...["fnm", "mise", "nvm", "pipx", "pnpm", "uv/python", "uv/tools", "virtualenvs"].map(
    (name) => `.local/share/${name}`,
  ),
];

/** Settings of tools, which are shown unless they hold a credential. */
const settings = [
  ...[".gitconfig", ".config/git/config", ".config/git/ignore", ".config/git/attributes"],
  ...[
    ".npmrc",
    ".yarnrc",
    ".yarnrc.yml",
    ".bunfig.toml",
    ".config/pip/pip.conf",
    ".pip/pip.conf",
    ".config/uv/uv.toml",
  ],
  ...[".condarc", ".cargo/config.toml", ".cargo/config", ".config/go/env", ".gemrc", ".m2/settings.xml"],
];

/** Directories in which tools store what they download and build: the commands of a session tree share private ones. */
export const cacheDirectories: readonly string[] = [
  ...[".cache", ".npm", ".yarn", ".bun/install/cache", ".local/share/pnpm/store"],
  ...[".cargo/registry", ".cargo/git", "go/pkg", ".m2/repository", ".gradle", ".ivy2", ".nuget", ".gem", ".pub-cache"],
];

/** Words and addresses by which settings hold a credential. */
const credential = /_auth|_key|token|passw|secret|extraheader|:\/\/[^\s/@]*:[^\s/@]*@/i;

/** Returns the paths of a home directory that commands see: toolchains, and the directories of a search path. */
export function findToolchains(home: string, searchPath: string): string[] {
  const found = toolchains.map((name) => join(home, name)).filter((path) => existsSync(path));
  for (const directory of searchPath.split(":").filter((path) => path.startsWith("/")))
    found.push(...programPaths(directory, home));
  return found;
}

/** Returns a directory of programs, and what belongs to it where it lies in a layout that installers use. */
export function programPaths(directory: string, home: string): string[] {
  if (!existsSync(directory)) return [];
  const root = dirname(directory);
  if (basename(root) === "node_modules") return [root];
  const isInstalled = programNames.has(basename(directory)) && root !== "/" && !isWithin(home, root);
  const parts = root === join(home, ".local") ? partNames.filter((name) => name !== "share") : partNames;
  return [directory, ...(isInstalled ? parts.map((name) => join(root, name)).filter((path) => existsSync(path)) : [])];
}

const programNames: ReadonlySet<string> = new Set(["bin", "sbin", "shims"]);
const partNames =
  "lib lib32 lib64 libexec include share versions plugins toolchains Cellar opt ssl conda-meta pyvenv.cfg".split(" ");

/** Finds settings of tools in a home directory that hold no credential; reads each again only after a change. */
export function createSettingsFinder(home: string): () => string[] {
  const known = new Map<string, { stamp: string; isShown: boolean }>();
  return () =>
    settings
      .map((name) => join(home, name))
      .filter((path) => {
        if (!existsSync(path)) return false;
        const stats = statSync(path, { bigint: true, throwIfNoEntry: false });
        if (!stats?.isFile()) return false;
        const stamp = `${stats.ino} ${stats.mtimeNs} ${stats.size}`;
        const before = known.get(path);
        if (before?.stamp === stamp) return before.isShown;
        const isShown = stats.size < maxSettingsBytes && !hasCredential(path);
        known.set(path, { stamp, isShown });
        return isShown;
      });
}

const maxSettingsBytes = 262_144n;

function hasCredential(path: string): boolean {
  try {
    return credential.test(readFileSync(path, "utf8"));
  } catch {
    return true;
  }
}
