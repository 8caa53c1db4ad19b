import { lstat, readdir, realpath } from "node:fs/promises";
import { basename, join, relative } from "node:path";
import { isWithin } from "../../core/paths.ts";
import { ChangedAfterApproval, ToolFailure } from "../../tool/errors.ts";
import { openFile } from "../../tool/open-file.ts";
import type { Problem } from "../processes/problem.ts";
import { maxSkillBytes, parseSkill, type SkillFile, SkillProblem, skillTooLarge } from "./skill-file.ts";

/** A directory with skills, each in a directory of its name. */
export interface SkillPlace {
  path: string;
  /** True for a directory of the user, where links are followed; false for one in a workspace. */
  isUser: boolean;
}

/** A SKILL.md that can be loaded. */
export interface FoundSkill extends Omit<SkillFile, "text"> {
  /** The canonical path of SKILL.md. */
  file: string;
  isUser: boolean;
}

/** The skills of one directory at one moment. */
export interface FoundSkills {
  skills: FoundSkill[];
  problems: Problem[];
  /** Paths whose metadata shows each change. */
  watched: string[];
}

/** Directories of a workspace in which skills are looked for, the first one taking precedence. */
const workspacePlaces = [".opencode/skill", ".opencode/skills", ".claude/skills"];
const maxSkills = 100;
const fileName = "SKILL.md";

/** Returns the places of a workspace. */
export function placesIn(workspace: string): SkillPlace[] {
  return workspacePlaces.map((path) => ({ path: join(workspace, path), isUser: false }));
}

/** Finds the skills in a directory. Anything unusable becomes a problem. `roots` are the workspaces, where tools may write. */
export async function findSkills(place: SkillPlace, roots: readonly string[]): Promise<FoundSkills> {
  const found: FoundSkills = { skills: [], problems: [], watched: [place.path] };
  const refuse = (path: string, reason: string, line = 0) => void found.problems.push({ path, line, reason });
  const path = await realpath(place.path).catch(() => undefined);
  if (path === undefined) return found;
  const reason = placeProblem(place, path, roots);
  if (reason !== undefined) {
    refuse(place.path, reason);
    return found;
  }
  const entries = await readdir(path, { withFileTypes: true }).catch((cause: Error) => {
    refuse(place.path, `cannot be read (${cause.message}); correct its permissions`);
    return [];
  });
  const candidates = entries
    .filter((entry) => !entry.name.startsWith(".") && (entry.isDirectory() || entry.isSymbolicLink()))
    .map(({ name }) => join(path, name))
    .sort();
  if (candidates.length > maxSkills) {
    refuse(place.path, `has ${candidates.length} directories, of which the first ${maxSkills} are used; remove some`);
  }
  for (const directory of candidates.slice(0, maxSkills)) {
    const file = join(directory, fileName);
    found.watched.push(directory, file);
    try {
      const { text: _, ...skill } = await readSkill({ file, isUser: place.isUser }, roots);
      found.skills.push(skill);
    } catch (cause) {
      if (!(cause instanceof SkillProblem)) throw cause;
      refuse(file, cause.message, cause.line);
    }
  }
  return found;
}

/** Explains why nothing of a directory is used; undefined if it may be. */
function placeProblem({ path, isUser }: SkillPlace, canonical: string, roots: readonly string[]): string | undefined {
  if (!isUser) {
    return canonical === path ? undefined : "is or lies behind a link, which is not followed; make it a real directory";
  }
  const root = roots.find((root) => isWithin(canonical, root));
  return root && `lies in the workspace ${root}, where tools may write; move it out of the workspace`;
}

/**
 * Reads a skill as its file is now; throws `SkillProblem`. In a workspace nothing is read through a link or under a second
 * name, which could show a file that rules deny.
 */
export async function readSkill(
  { file, isUser }: Pick<FoundSkill, "file" | "isUser">,
  roots: readonly string[],
): Promise<FoundSkill & SkillFile> {
  const directory = basename(join(file, ".."));
  const canonical = await realpath(file).catch((cause: NodeJS.ErrnoException) => {
    if (cause.code === "ENOENT") throw new SkillProblem("does not exist; add it, or move its directory elsewhere");
    throw new SkillProblem(`cannot be read (${cause.message}); correct it`);
  });
  if (!isUser && canonical !== file) throw new SkillProblem("is or lies behind a link; put the file itself there");
  const root = isUser && roots.find((root) => isWithin(canonical, root));
  if (root) throw new SkillProblem(`leads to the workspace ${root}, where tools may write; copy it instead`);
  const stats = await lstat(canonical).catch((cause: Error) => {
    throw new SkillProblem(`cannot be read (${cause.message}); list the tools again`);
  });
  if (stats.isDirectory()) throw new SkillProblem("is a directory; make it a file");
  if (!isUser && stats.nlink > 1) throw new SkillProblem("has other names (hard links); put a copy there");
  return { ...(await parseSkill(await bytesOf(canonical, isUser), directory)), file: canonical, isUser };
}

async function bytesOf(file: string, isUser: boolean): Promise<Buffer> {
  try {
    using opened = openFile({ absolute: file, otherNames: isUser });
    if (opened === undefined) throw new SkillProblem("does not exist any more; list the tools again");
    if (opened.stats.size > maxSkillBytes) throw skillTooLarge(opened.stats.size);
    return await opened.bytes();
  } catch (cause) {
    if (cause instanceof ChangedAfterApproval) throw new SkillProblem("was replaced while it was read; read it again");
    if (cause instanceof ToolFailure) throw new SkillProblem(`cannot be read: ${cause.message}`);
    throw cause;
  }
}

/** Returns the SHA-256 of each skill of a workspace, by its path in the workspace. */
export async function digestSkills(workspace: string): Promise<Record<string, string>> {
  const found = await Promise.all(placesIn(workspace).map((place) => findSkills(place, [])));
  const skills = found.flatMap(({ skills }) => skills);
  return Object.fromEntries(skills.map(({ file, sha256 }) => [relative(workspace, file), sha256]));
}
