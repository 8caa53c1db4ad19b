import * as z from "zod";
import { visible } from "../core/visible.ts";
import { workspaceRoot } from "../core/workspace-root.ts";
import { defineTool } from "../tool/define-tool.ts";
import { ToolFailure } from "../tool/errors.ts";
import type { Skill, Skills } from "../tool/skills/skills.ts";
import type { Judge, Tool } from "../tool/tool.ts";
import { listSkills } from "./skill/list-skills.ts";
import { sampleFiles, showSkill } from "./skill/show-skill.ts";

const maxNameLength = 256;

/**
 * Loads the instructions of a skill. A skill of a workspace that is not trusted with its present content asks each time, and
 * its text is fenced.
 */
export function createSkill({ skills, agentNames }: { skills: Skills; agentNames(): readonly string[] }): Tool {
  return defineTool({
    name: "skill",
    version: "1",
    description: [
      "Load a skill: instructions for one kind of task, written by the user or the project, with the files that belong to them.",
      "Load it as soon as a task matches its description, before you work on the task.",
    ].join(" "),
    input: z.preprocess(
      nameFromId,
      z.object({ name: z.string().min(1).max(maxNameLength).describe("The name of the skill, as listed") }),
    ),
    permissions: ["skill"],
    readOnly: true,
    idempotent: true,
    // A skill is never truncated: its end may take back what its beginning says, and closes the fence.
    keep: { lines: 100_000, bytes: 1_048_576 },
    offer: async ({ workspace, judge }) => listSkills(visibleTo(judge, await skills.list(workspace))),
    async plan({ name }, { workspace, judge }) {
      const root = workspaceRoot(workspace.name);
      const skill = await skills.load(root, name);
      const ask = { permission: "skill", patterns: [name], always: [name] };
      return {
        title: `skill ${name}`,
        asks: [skill?.distrust === undefined ? ask : { ...ask, alwaysAsk: skill.distrust }],
        ...(skill && { contentDigest: skill.sha256 }),
        skill,
        async inspect() {
          if (skill === undefined) throw unknownSkill(name, visibleTo(judge, await skills.list(root)), agentNames());
          return { preview: () => ({ paths: [skill.file], text: skill.text }) };
        },
      };
    },
    async execute({ name }, { plan: { skill }, workspace, judge }) {
      if (skill === undefined) throw new ToolFailure(`Skill "${visible(name)}" not found.`);
      const files = await sampleFiles(skill, workspace, judge);
      return {
        title: `Loaded skill: ${name}`,
        output: showSkill(skill, files),
        metadata: { name, file: skill.file, trusted: skill.distrust === undefined },
      };
    },
  });
}

/** Returns the input with `name` for `id`, as newer models call it; both may be there if they are equal. */
function nameFromId(input: unknown, ctx: z.core.$RefinementCtx): unknown {
  if (typeof input !== "object" || input === null || !("id" in input)) return input;
  const { id, ...rest } = input;
  if (!("name" in rest)) return { ...rest, name: id };
  if (rest.name !== id) ctx.addIssue({ code: "custom", message: "differs from id; send name alone", path: ["name"] });
  return rest;
}

/** Returns the skills that rules do not deny. */
function visibleTo(judge: Judge, skills: readonly Skill[]): Skill[] {
  return skills.filter(({ name }) => judge({ permission: "skill", patterns: [name] }).action !== "deny");
}

function unknownSkill(name: string, skills: readonly Skill[], agents: readonly string[]): ToolFailure {
  const names = `Available skills: ${skills.map(({ name }) => name).join(", ") || "none"}`;
  if (agents.includes(name)) return new ToolFailure(`\`${name}\` is an agent, not a skill. ${names}`);
  return new ToolFailure(`Skill "${visible(name)}" not found. ${names}`);
}
