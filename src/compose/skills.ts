import { join, relative } from "node:path";
import { type CustomTools, pluginsOf } from "../bodies/processes/custom-tools.ts";
import { policyDigestIn, readSources } from "../bodies/processes/sources.ts";
import { createTrust } from "../bodies/processes/trust.ts";
import { digestSkills } from "../bodies/skills/find-skills.ts";
import { createSkills, type Skills } from "../bodies/skills/skills.ts";
import type { Config, Finding } from "../config/config.ts";
import type { Logger } from "../core/logger.ts";

/** Opens the skills of the user and of all workspaces, and logs what is wrong with them. */
export async function openSkills(
  { skillDirectories, workspaces, trustDirectory }: Pick<Config, "skillDirectories" | "workspaces" | "trustDirectory">,
  log: Pick<Logger, "warn">,
): Promise<Skills> {
  const skills = createSkills({
    userPlaces: skillDirectories,
    workspaces,
    trust: createTrust(trustDirectory),
    report: ({ path, line, reason }) => log.warn("a skill is not offered, or always asks", { path, line, reason }),
  });
  await skills.refresh();
  return skills;
}

/** Finds what is wrong with the user's skills, without a service. */
export async function checkUserSkills(directories: readonly string[]): Promise<Finding[]> {
  const findings: Finding[] = [];
  const skills = createSkills({
    userPlaces: directories,
    workspaces: new Map(),
    trust: { skillsOf: async () => undefined, fileOf: () => "" },
    report: ({ path, line, reason }) =>
      void findings.push({
        severity: "warning",
        line: undefined,
        message: `the skill ${path}${line === 0 ? "" : `:${line}`} ${reason}`,
      }),
  });
  await skills.list("default");
  return findings;
}

/** Problems that keep files and servers from being offered, read again before a list of tools. */
export type ToolProblems = Pick<Skills, "refresh"> & Pick<CustomTools, "problems">;

/** Adds the problems of skills to those of tool files and plugins. */
export function withSkillProblems(
  custom: Pick<CustomTools, "problems">,
  skills: Pick<Skills, "refresh" | "problems">,
): ToolProblems {
  return {
    refresh: skills.refresh,
    problems: (workspace) => [...custom.problems(workspace), ...skills.problems(workspace)],
  };
}

/**
 * Trusts the code and the policy file in a workspace's `.opencode` and its skills as they are now, or with `remove` no longer. Returns
 * what is trusted, by its files. A running service applies the change.
 */
export async function trustWorkspace(
  trustDirectory: string,
  directory: string,
  remove: boolean,
): Promise<TrustedFiles> {
  const trust = createTrust(trustDirectory);
  const codeDirectory = join(directory, ".opencode");
  const { entries, digest } = await readSources(codeDirectory, [codeDirectory]);
  if (remove) {
    await trust.remove(directory);
    return { directory, tools: [], plugins: [], policy: [], skills: [] };
  }
  const [skills, plugins] = await Promise.all([digestSkills(directory), pluginsOf(codeDirectory)]);
  const policy = await policyDigestIn(codeDirectory);
  await trust.set(directory, digest, policy, skills);
  return {
    directory,
    tools: entries.map(({ path }) => join(".opencode", path)),
    plugins: plugins.map((path) => relative(directory, path)),
    policy: policy === undefined ? [] : [join(".opencode", "config.toml")],
    skills: Object.keys(skills).sort(),
  };
}

/** The files of a workspace that a person trusts, relative to it. */
export interface TrustedFiles {
  directory: string;
  tools: string[];
  plugins: string[];
  policy: string[];
  skills: string[];
}
