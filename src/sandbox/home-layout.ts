import { existsSync, readFileSync, statSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import { isWithin } from "./is-within.ts";

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
