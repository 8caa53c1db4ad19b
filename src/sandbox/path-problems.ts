import { readdirSync } from "node:fs";
import { basename, dirname } from "node:path";
import type { FileUse } from "../policy/file-decisions.ts";
import type { ReadPlace } from "../policy/read-doubts.ts";
import { isGitCode, pathInGitDirectory } from "./git-directories.ts";
import { isWithin } from "./is-within.ts";
import type { PlanInput, PlanRoot } from "./plan-input.ts";

/** Checks if a file may be read. */
export function isReadable({ decisions, allowed }: PlanInput, place: ReadPlace): boolean {
  return allowed.read.has(place.absolute) || decisions.restriction("read", place) === undefined;
}

/** Returns the reason why a file may not be changed; undefined if it may. */
export function changeProblem({ decisions, allowed, editTrees }: PlanInput, place: ReadPlace): string | undefined {
  if (allowed.edit.has(place.absolute) || editTrees.some((tree) => isWithin(place.absolute, tree))) return undefined;
  const denied = decisions.restriction("edit", place);
  if (denied !== undefined) return denied;
  const inGit = pathInGitDirectory(place.absolute);
  const isGitData = inGit !== undefined && !isGitCode(inGit);
  // What surrounds a repository may be protected as a whole.
  const judged = isGitData ? `${place.absolute.slice(0, -inGit.length - "/.git/".length)}/${unnamed}` : place.absolute;
  const what = decisions.protection(judged);
  return what === undefined ? undefined : `${place.pattern} is ${what}`;
}

/** Returns the reason why nothing below a directory may be changed; undefined if something may, or if that is uncertain. */
export function directoryProblem({ decisions, editTrees }: PlanInput, place: ReadPlace): string | undefined {
  if (editTrees.some((tree) => isWithin(place.absolute, tree) || isWithin(tree, place.absolute))) return undefined;
  if (decisions.isClosed("edit", place)) return decisions.restriction("edit", childOf(place));
  const inGit = pathInGitDirectory(childOf(place).absolute);
  if (inGit !== undefined) return isGitCode(inGit) ? `${place.pattern} is a directory of hooks` : undefined;
  const what = decisions.protection(childOf(place).absolute);
  return what === undefined ? undefined : `${place.pattern} is ${what}`;
}

/** Checks if the call was allowed a path below a directory. */
export const holdsAllowed = ({ allowed }: PlanInput, access: FileUse, directory: string) =>
  [...allowed[access]].some((path) => path.startsWith(`${directory}/`));

/** Returns a path below a root with the form of it that rules match. */
export function rulePlaceOf(root: PlanRoot, absolute: string): ReadPlace {
  const below = absolute.slice(root.absolute.length + 1);
  return { absolute, pattern: root.pattern === "." ? below : `${root.pattern}/${below}` };
}

/** Returns a path below a directory that no rule names. */
export function childOf({ absolute, pattern }: ReadPlace): ReadPlace {
  return { absolute: `${absolute}/${unnamed}`, pattern: `${pattern}/${unnamed}` };
}

/** A name that no rule names. */
export const unnamed = "toolgate-any-file";

/** Directories of installed packages. */
export const packageDirectories = new Set(["node_modules", "site-packages"]);

/** Checks if a path contains bytes that are not UTF-8, which Node replaces. */
export const isUndecodable = (path: string): boolean => path.includes("\uFFFD");

/** Returns the bytes of a path whose last name may be undecodable; of several such names the first one. */
export function rawPathOf(path: string): Buffer {
  if (!isUndecodable(basename(path))) return Buffer.from(path);
  const name = readdirSync(dirname(path), { encoding: "buffer" }).find((each) => String(each) === basename(path));
  return name ? Buffer.concat([Buffer.from(`${dirname(path)}/`), name]) : Buffer.from(path);
}
