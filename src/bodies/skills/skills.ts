import { relative } from "node:path";
import type { Problem } from "../processes/problem.ts";
import { createFileStamp, type Trust } from "../processes/trust.ts";
import { type FoundSkill, findSkills, placesIn, readSkill } from "./find-skills.ts";
import { type SkillFile, SkillProblem } from "./skill-file.ts";

/** A skill that is offered in a workspace. */
export interface Skill extends FoundSkill {
  /** The reason to ask each time, a predicate; undefined for one of the user, or of a workspace that is trusted with this content. */
  distrust: string | undefined;
}

/** The skills of the user and of the workspaces. */
export type Skills = ReturnType<typeof createSkills>;

/** Dependencies of the skills. */
export interface SkillsParts {
  /** Directories of the user; the first one takes precedence. */
  userPlaces: readonly string[];
  /** Root name → canonical directory. */
  workspaces: ReadonlyMap<string, string>;
  trust: Pick<Trust, "skillsOf" | "fileOf">;
  /** Called once for each new problem. */
  report(problem: Problem): void;
}

/** The skills of one workspace root as they were found last. */
interface Known {
  readonly stamp: ReturnType<typeof createFileStamp>;
  skills: readonly Skill[];
  problems: Problem[];
}

/** Creates the skills; nothing is read before they are listed. */
export function createSkills(parts: SkillsParts) {
  const known = new Map<string, Known>();
  const knownOf = (workspace: string): Known => {
    const found = known.get(workspace) ?? { stamp: createFileStamp(), skills: [], problems: [] };
    known.set(workspace, found);
    return found;
  };
  async function list(workspace: string): Promise<readonly Skill[]> {
    const now = knownOf(workspace);
    if (!now.stamp.isCurrent()) await refresh(parts, workspace, now);
    return now.skills;
  }
  return {
    /** Returns the skills of a workspace root as they are now, sorted by name. */
    list,
    /** Returns a skill with its text as it is now; undefined if there is none of this name. */
    async load(workspace: string, name: string): Promise<(Skill & SkillFile) | undefined> {
      const skill = (await list(workspace)).find((skill) => skill.name === name);
      if (skill === undefined) return undefined;
      const roots = [...parts.workspaces.values()];
      const read = await readSkill(skill, roots).catch((cause: unknown) => {
        if (cause instanceof SkillProblem) return undefined;
        throw cause;
      });
      // A file that changed within this call is not the one whose trust was checked.
      return read?.sha256 === skill.sha256 ? { ...skill, text: read.text } : undefined;
    },
    /** Reads what has changed in all workspace roots. */
    async refresh(): Promise<void> {
      for (const workspace of parts.workspaces.keys()) await list(workspace);
    },
    /** Skills of a workspace root that are not offered, or that always ask, as they were read last. */
    problems: (workspace: string): Problem[] => knownOf(workspace).problems,
  };
}

/** Finds the skills of a workspace root again, and reports the problems that are new. */
async function refresh(parts: SkillsParts, workspace: string, known: Known): Promise<void> {
  const readSince = Date.now();
  const directory = parts.workspaces.get(workspace);
  const roots = [...parts.workspaces.values()];
  const own = directory === undefined ? [] : placesIn(directory);
  // In a workspace that is the home directory these places are those of the workspace.
  const isOwn = (path: string) => own.some((place) => place.path === path);
  const user = parts.userPlaces.filter((path) => !isOwn(path)).map((path) => ({ path, isUser: true }));
  const found = await Promise.all([...own, ...user].map((place) => findSkills(place, roots)));
  const trusted = directory === undefined ? undefined : await parts.trust.skillsOf(directory);
  const skills = found
    .flatMap(({ skills }) => skills)
    .map((skill) => ({ ...skill, distrust: distrustOf(skill, directory ?? "", trusted) }));
  const { offered, shadowed } = resolveNames(skills);
  const problems = [
    ...found.flatMap(({ problems }) => problems),
    ...shadowed,
    ...offered.flatMap((skill) => distrustProblem(skill, directory ?? "")),
  ];
  const before = new Set(known.problems.map(textOf));
  const record = directory === undefined ? [] : [parts.trust.fileOf(directory)];
  known.stamp.take([...found.flatMap(({ watched }) => watched), ...record], readSince);
  known.skills = offered.toSorted((one, other) => (one.name < other.name ? -1 : 1));
  known.problems = problems;
  for (const problem of problems) if (!before.has(textOf(problem))) parts.report(problem);
}

function distrustOf(
  { file, sha256, isUser }: FoundSkill,
  workspace: string,
  trusted: ReadonlyMap<string, string> | undefined,
): string | undefined {
  if (isUser) return undefined;
  if (trusted === undefined) return "comes from a workspace that is not trusted";
  const digest = trusted.get(relative(workspace, file));
  if (digest === sha256) return undefined;
  return digest === undefined
    ? "was added after its workspace was trusted"
    : "has changed since its workspace was trusted";
}

/** Decides which of several skills of one name is offered: a trusted workspace's, then the user's, then an untrusted one. */
function resolveNames(skills: readonly Skill[]): { offered: Skill[]; shadowed: Problem[] } {
  const rank = ({ isUser, distrust }: Skill) => (isUser ? 1 : distrust === undefined ? 0 : 2);
  const byName = Map.groupBy(
    skills.toSorted((one, other) => rank(one) - rank(other)),
    ({ name }) => name,
  );
  const offered: Skill[] = [];
  const shadowed: Problem[] = [];
  for (const [first, ...others] of byName.values()) {
    if (first === undefined) continue;
    offered.push(first);
    for (const { file, name } of others) {
      const reason = `is not used, since ${first.file} has the same name ${name} and takes precedence; rename or remove one`;
      shadowed.push({ path: file, line: 0, reason });
    }
  }
  return { offered, shadowed };
}

function distrustProblem({ file, distrust }: Skill, workspace: string): Problem[] {
  if (distrust === undefined) return [];
  const reason = `asks before each use, since it ${distrust}; review it, then run: toolgate trust ${workspace}`;
  return [{ path: file, line: 0, reason }];
}

const textOf = ({ path, line, reason }: Problem) => `${path}:${line} ${reason}`;
