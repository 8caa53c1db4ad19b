import { lstatSync, readdirSync, readFileSync } from "node:fs";
import { basename } from "node:path";

/** Maximum size of a file of settings that is read. */
const maxBytes = 65_536;

/**
 * Checks if a path of a new repository gives git no command to run, as `git init`, `git clone` and `git worktree add` make them:
 * a directory of sample hooks, settings that only name branches and remote repositories, and the file of a work tree that leads
 * to such a repository.
 */
export function isPlainRepository(path: string): boolean {
  const [, inside] = /\/\.git(?:\/(.*))?$/s.exec(path) ?? [];
  if (inside === undefined) return basename(path) === ".git" && isWorkTreeFile(path);
  if (inside === "hooks") return hasSampleHooksOnly(path);
  if (/^worktrees\/[^/]+\/commondir$/.test(inside)) return textOf(path) === ownCommonDirectory;
  return /^(config|config\.worktree|worktrees\/[^/]+\/config\.worktree)$/.test(inside) && isPlainConfig(textOf(path));
}

function hasSampleHooksOnly(directory: string): boolean {
  try {
    return readdirSync(directory, { withFileTypes: true }).every(
      (entry) => entry.isFile() && entry.name.endsWith(".sample"),
    );
  } catch {
    return false;
  }
}

/** Content of `commondir` of a work tree: the repository in whose directory it is. */
const ownCommonDirectory = "../..\n";

/** Checks the file `.git` of a work tree: it names a directory below a repository, which is judged by itself. */
function isWorkTreeFile(path: string): boolean {
  const [, directory] = /^gitdir: (\/[^\n]*\/\.git\/worktrees\/[^/\n]+)\n?$/.exec(textOf(path) ?? "") ?? [];
  return directory !== undefined && textOf(`${directory}/commondir`) === ownCommonDirectory;
}

function textOf(path: string): string | undefined {
  const stats = lstatSync(path, { throwIfNoEntry: false });
  return stats?.isFile() && stats.size <= maxBytes ? readFileSync(path, "utf8") : undefined;
}

/** Checks if settings hold nothing but what describes a repository. No value can be continued, quoted or escaped. */
function isPlainConfig(text: string | undefined): boolean {
  if (text === undefined) return false;
  let section = "";
  return text.split("\n").every((line) => {
    if (/^\s*$/.test(line)) return true;
    const [, header] = /^\[(core|(?:remote|branch) "[^"\\]+")\]$/.exec(line) ?? [];
    if (header !== undefined) section = header.split(" ", 1)[0] ?? "";
    if (header !== undefined) return true;
    const [, name = "", value = ""] = /^\t(\w+) = ([\w./:@+*~ -]+)$/.exec(line) ?? [];
    return plainSettings.get(section)?.has(name) === true && !value.includes("::");
  });
}

/** Settings that git only reads as data. */
const plainSettings: ReadonlyMap<string, ReadonlySet<string>> = new Map([
  [
    "core",
    new Set(["repositoryformatversion", "filemode", "bare", "logallrefupdates", "ignorecase", "precomposeunicode"]),
  ],
  ["remote", new Set(["url", "fetch"])],
  ["branch", new Set(["remote", "merge"])],
]);
