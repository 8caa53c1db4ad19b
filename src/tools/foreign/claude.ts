import * as z from "zod";
import { compare } from "../fs/diff.ts";
import { cellSource } from "../read/notebook.ts";
import { planCommand } from "./command.ts";
import { contentChange, editsOf, planChange, planRead } from "./files.ts";
import { type Mapping, mapping } from "./mapping.ts";
import { planFetch, planNamed } from "./others.ts";
import { planGlob, planGrep } from "./search.ts";

const path = z.string().min(1);
const edit = z.object({ old_string: z.string(), new_string: z.string(), replace_all: z.boolean().optional() });

const wanted = ({
  old_string: oldString,
  new_string: newString,
  replace_all: replaceAll = false,
}: z.output<typeof edit>) => ({
  oldString,
  newString,
  replaceAll,
});

const task = mapping({
  permissions: ["task"],
  input: z.object({ subagent_type: z.string().optional(), description: z.string().optional() }),
  plan: ({ subagent_type: agent = "general-purpose", description }) => planNamed("task", agent, description ?? agent),
});

/** Tools of Claude Code. */
export const claudeTools: Readonly<Record<string, Mapping>> = {
  Bash: mapping({
    permissions: ["bash"],
    input: z.object({
      command: z.string().min(1),
      description: z.string().optional(),
      dangerouslyDisableSandbox: z.boolean().optional(),
    }),
    keep: { end: "tail" },
    plan: ({ command, description, dangerouslyDisableSandbox }, at) =>
      planCommand(
        { command, description, ...(dangerouslyDisableSandbox && { alwaysAsk: "runs outside the agent's sandbox" }) },
        at,
      ),
  }),
  Read: mapping({
    permissions: ["read"],
    input: z.object({ file_path: path }),
    readOnly: true,
    plan: ({ file_path }, at) => planRead(file_path, at),
  }),
  Edit: mapping({
    permissions: ["edit"],
    input: edit.extend({ file_path: path }),
    plan: ({ file_path, ...input }, at) => planChange(file_path, editsOf([wanted(input)]), at),
  }),
  MultiEdit: mapping({
    permissions: ["edit"],
    input: z.object({ file_path: path, edits: z.array(edit).min(1) }),
    plan: ({ file_path, edits }, at) => planChange(file_path, editsOf(edits.map(wanted)), at),
  }),
  Write: mapping({
    permissions: ["edit"],
    input: z.object({ file_path: path, content: z.string() }),
    plan: ({ file_path, content }, at) => planChange(file_path, contentChange(content), at),
  }),
  NotebookEdit: mapping({
    permissions: ["edit"],
    input: z.object({ notebook_path: path, cell_id: z.string().optional(), new_source: z.string().default("") }),
    plan: ({ notebook_path, cell_id, new_source }, at) =>
      planChange(
        notebook_path,
        (before, { pattern }) => compare(pattern, { text: cellSource(before?.text ?? "", cell_id) }, new_source),
        at,
      ),
  }),
  Glob: mapping({
    permissions: ["glob"],
    input: z.object({ pattern: path, path: path.optional() }),
    readOnly: true,
    plan: planGlob,
  }),
  Grep: mapping({
    permissions: ["grep"],
    input: z.object({ pattern: path, path: path.optional(), glob: path.optional(), type: z.string().optional() }),
    readOnly: true,
    plan: ({ pattern, path: place, glob, type }, at) => planGrep({ pattern, path: place, include: glob ?? type }, at),
  }),
  WebFetch: mapping({
    permissions: ["webfetch"],
    input: z.object({ url: z.string() }),
    plan: ({ url }) => planFetch(url),
  }),
  WebSearch: mapping({
    permissions: ["websearch"],
    input: z.object({ query: z.string() }),
    plan: ({ query }) => planNamed("websearch", query),
  }),
  Agent: task,
  Task: task,
  Skill: mapping({
    permissions: ["skill"],
    input: z.object({ skill: z.string().optional(), command: z.string().optional(), name: z.string().optional() }),
    plan: ({ skill, command, name }) => planNamed("skill", skill ?? command ?? name ?? ""),
  }),
  TodoWrite: mapping({
    permissions: ["todowrite"],
    input: z.looseObject({}),
    plan: () => planNamed("todowrite", "*", "todos"),
  }),
};
