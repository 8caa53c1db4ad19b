import { lstatSync, readFileSync, realpathSync } from "node:fs";
import { dirname, join, resolve } from "node:path";

/**
 * Returns the repository of a directory that is a worktree of git, by its canonical path; undefined for other directories. The
 * repository has to name the worktree: a `.git` that a command wrote could name any directory.
 */
export function repositoryOfWorktree(directory: string): string | undefined {
  const link = join(directory, ".git");
  if (!lstatSync(link, { throwIfNoEntry: false })?.isFile()) return undefined;
  try {
    const [, named = ""] = /^gitdir: (.+)/.exec(readFileSync(link, "utf8")) ?? [];
    const own = realpathSync(resolve(directory, named));
    const back = readFileSync(join(own, "gitdir"), "utf8").trim();
    if (realpathSync(dirname(back)) !== directory) return undefined;
    return realpathSync(resolve(own, readFileSync(join(own, "commondir"), "utf8").trim()));
  } catch {
    return undefined;
  }
}
