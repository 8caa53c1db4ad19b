import { dirname } from "node:path";
import type { Files } from "./touched.ts";

/** Finds the repository of a directory as git does; `problem` says why it is none that a person set up. */
export async function repositoryAt(
  cwd: string,
  files: Pick<Files, "list">,
): Promise<{ top?: string; problem?: string }> {
  for (let at = cwd; ; at = dirname(at)) {
    const names = new Set((await files.list(at)).map(({ name }) => name));
    if (names.has(".git")) return { top: at };
    if (isBare(names)) return { problem: `runs in ${at}, which git takes for a repository although it is no .git` };
    if (at === "/" || at === ".") return {};
  }
}

/** A directory with these three is a repository for git, with settings that run programs. */
function isBare(names: ReadonlySet<string>): boolean {
  return names.has("HEAD") && (names.has("objects") || names.has("refs") || names.has("commondir"));
}

/** Returns the top directory of the repository in whose store of objects a path lies; undefined for other paths. */
export function topOfObjects(path: string): string | undefined {
  return /^(.*?)\/\.git\/(?:.*\/)?objects(?:\/|$)/s.exec(path)?.[1];
}
