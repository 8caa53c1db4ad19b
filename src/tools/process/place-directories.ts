import { realpath, stat } from "node:fs/promises";
import type { PlaceDirectory, SandboxPlace } from "../../sandbox/confinement.ts";
import { isWithin } from "../../sandbox/is-within.ts";
import { namedDirectories } from "../../sandbox/named-directories.ts";
import type { ToolContext } from "../../tool/tool.ts";

/**
 * Collects the directories outside the workspace that a command sees: those that its call was allowed, and those that rules
 * allow. They are read-only unless the call was allowed to edit something below, or rules allow that.
 */
export async function placeDirectories(
  { judge, outside, files }: Pick<ToolContext, "judge" | "outside" | "files">,
  changed: readonly string[],
): Promise<Pick<SandboxPlace, "directories" | "closed">> {
  const { candidates, closed } = namedDirectories(judge.fileRules());
  const allows = (permission: string, pattern: string, path: string) =>
    judge({ permission, patterns: [pattern], paths: [path] }).action === "allow";
  const isAllowed = (path: string) => allows("external_directory", below(path, "*"), path);
  const allowed = (await existing(candidates.filter(isAllowed))).filter(isAllowed);
  const edited = [...files.edit, ...changed];
  return {
    directories: [...new Set([...outside, ...allowed])].map((path): PlaceDirectory => {
      const file = below(path, "toolgate-any-file");
      return { path, isWritable: edited.some((one) => isWithin(one, path)) || allows("edit", file, file) };
    }),
    closed: (await existing(closed)).filter((path) => !outside.includes(path) && !isAllowed(path)),
  };
}

const below = (directory: string, name: string) => `${directory === "/" ? "" : directory}/${name}`;

/** Returns the canonical paths of those that are directories. */
async function existing(paths: readonly string[]): Promise<string[]> {
  const found = paths.map(async (path) => {
    const canonical = await realpath(path);
    return (await stat(canonical)).isDirectory() ? [canonical] : [];
  });
  return (await Promise.allSettled(found)).flatMap((one) => (one.status === "fulfilled" ? one.value : []));
}
