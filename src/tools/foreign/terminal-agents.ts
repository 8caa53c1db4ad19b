import * as z from "zod";
import {
  contentChange,
  editsOf,
  type Mapping,
  mapping,
  namedBy,
  planChange,
  planCommand,
  planGlob,
  planGrep,
  planLook,
  planNamed,
  readOf,
  writeOf,
} from "./mapping.ts";
import { opencodeTools } from "./opencode.ts";

// Tools of agents in terminals, by the names that their hooks send. One without a mapping asks with its whole input.

const text = z.string().min(1);
const optional = z.string().optional();

/** Tools of Codex. */
export const codexTools: Readonly<Record<string, Mapping>> = {
  Bash: mapping({
    permissions: ["bash"],
    input: z.object({ command: text }),
    keep: { end: "tail" },
    plan: ({ command }, at) =>
      planCommand(
        // Codex applies such a text to files by itself, before any shell reads it.
        { command, ...(/apply_?patch/i.test(command) && { alwaysAsk: "is a patch that Codex applies by itself" }) },
        at,
      ),
  }),
  view_image: readOf("path"),
  spawn_agent: mapping({
    permissions: ["task"],
    input: z.looseObject({ agent_type: z.string().default("default") }),
    plan: ({ agent_type }) => planNamed("task", agent_type),
  }),
};

/** Tools of Gemini CLI. */
export const geminiTools: Readonly<Record<string, Mapping>> = {
  run_shell_command: mapping({
    permissions: ["bash"],
    input: z.object({ command: text, description: optional, dir_path: optional }),
    keep: { end: "tail" },
    plan: ({ command, description, dir_path: workdir }, at) => planCommand({ command, description, workdir }, at),
  }),
  read_file: readOf("file_path"),
  list_directory: mapping({
    permissions: ["list"],
    input: z.object({ dir_path: text }),
    readOnly: true,
    plan: ({ dir_path }, at) => planLook("list", dir_path, at),
  }),
  grep_search: mapping({
    permissions: ["grep"],
    input: z.object({ pattern: text, dir_path: text.optional(), include_pattern: optional }),
    readOnly: true,
    plan: ({ pattern, dir_path: path, include_pattern: include }, at) => planGrep({ pattern, path, include }, at),
  }),
  glob: mapping({
    permissions: ["glob"],
    input: z.object({ pattern: text, dir_path: text.optional() }),
    readOnly: true,
    plan: ({ pattern, dir_path: path }, at) => planGlob({ pattern, path }, at),
  }),
  replace: mapping({
    permissions: ["edit"],
    input: z.object({
      file_path: text,
      old_string: z.string(),
      new_string: z.string(),
      allow_multiple: z.boolean().default(false),
    }),
    plan: ({ file_path, old_string: oldString, new_string: newString, allow_multiple: replaceAll }, at) =>
      planChange(file_path, editsOf([{ oldString, newString, replaceAll }]), at),
  }),
  write_file: writeOf("file_path"),
  google_web_search: namedBy("websearch", "query", text),
  invoke_agent: namedBy("task", "agent_name", text),
  activate_skill: namedBy("skill", "name", text),
  write_todos: opencodeTools.todowrite,
};

/** Tools of GitHub Copilot CLI. */
export const copilotTools: Readonly<Record<string, Mapping>> = {
  bash: mapping({
    permissions: ["bash"],
    input: z.object({ command: text, description: optional }),
    keep: { end: "tail" },
    plan: planCommand,
  }),
  view: readOf("path"),
  create: mapping({
    permissions: ["edit"],
    input: z.object({ path: text, file_text: z.string().default("") }),
    plan: ({ path, file_text }, at) => planChange(path, contentChange(file_text), at),
  }),
  edit: mapping({
    permissions: ["edit"],
    input: z.object({ path: text, old_str: z.string().default(""), new_str: z.string().default("") }),
    plan: ({ path, old_str: oldString, new_str: newString }, at) =>
      planChange(path, editsOf([{ oldString, newString, replaceAll: false }]), at),
  }),
  task: mapping({
    permissions: ["task"],
    input: z.object({ agent_type: text, description: optional }),
    plan: ({ agent_type, description }) => planNamed("task", agent_type, description),
  }),
  skill: namedBy("skill", "skill", text),
};
