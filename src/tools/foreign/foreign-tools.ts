import type { JsonObject, JsonValue } from "@bufbuild/protobuf";
import * as z from "zod";
import { outsideSandbox } from "../../core/ask.ts";
import { bindForeignTool, defineTool, wholeInput } from "../../tool/define-tool.ts";
import { type ForeignPlace, type ForeignTools, foreignName } from "../../tool/foreign.ts";
import type { Plan, Tool } from "../../tool/tool.ts";
import type { PathHandle } from "../../tool/workspace.ts";
import { compare } from "../fs/diff.ts";
import { cellSource } from "../read/notebook.ts";
import {
  contentChange,
  editsOf,
  type Mapping,
  mapping,
  type Place,
  placeOf,
  planChange,
  planCommand,
  planFetch,
  planGrep,
  planNamed,
  readOf,
  writeOf,
} from "./mapping.ts";
import { opencodeTools } from "./opencode.ts";
import { codexTools, copilotTools, geminiTools } from "./terminal-agents.ts";

/** Input of a call of an ACP agent: what the agent sent about the use of its tool. */
const request = z.object({
  title: z.string(),
  name: z.string().optional(),
  rawInput: z.looseObject({}).default({}),
  locations: z.array(z.string()).default([]),
  changes: z.array(z.object({ path: z.string(), oldText: z.string().optional(), newText: z.string() })).default([]),
  content: z.array(z.string()).default([]),
});

/** The use of a tool, in the agent's words. */
interface AcpUse extends Omit<z.output<typeof request>, "rawInput"> {
  rawInput: JsonObject;
}

/** Plans uses of one kind; undefined if the input has no form that is known. */
type KindPlan = (use: AcpUse, at: Place) => Promise<Plan | undefined> | Plan | undefined;

/**
 * Tools of ACP agents, by ACP's kinds of tools. A kind is a label for icons that the agent chooses, so it decides nothing: it
 * selects a form of input, and what the input holds is judged. Input without that form asks for the permission `acp:KIND`.
 */
const acpTools: Readonly<Record<string, Mapping>> = {
  execute: kind("execute", ["bash"], planExecute, { keep: { end: "tail" } }),
  read: kind("read", ["read"], planPaths("read", ["offset", "limit", "line", "start_line", "end_line"])),
  edit: kind("edit", ["edit"], planEdit),
  delete: kind("delete", ["edit"], planPaths("edit", [], { isDeletion: true })),
  move: kind("move", ["edit"], planPaths("edit", [])),
  search: kind("search", ["grep"], planSearch),
  fetch: kind("fetch", ["webfetch", "websearch"], planWeb),
  think: kind("think", [], () => undefined),
  switch_mode: kind("switch_mode", [], () => undefined),
  other: kind("other", [], () => undefined),
};

function kind(name: string, permissions: readonly string[], plan: KindPlan, more: Pick<Mapping, "keep"> = {}): Mapping {
  return mapping({
    ...more,
    permissions: [...permissions, `acp:${name}`],
    input: request,
    async plan(input, at) {
      const use = input as AcpUse;
      const planned = (await plan(use, at)) ?? { ...wholeInput(`acp:${name}`, use), title: use.title || name };
      return isBare(use) ? cautious(planned, "was asked for without its input, so what it does is not known") : planned;
    },
  });
}

/** Checks for a request of which only the title and texts for people are known. */
function isBare({ rawInput, changes }: AcpUse): boolean {
  return Object.keys(rawInput).length === 0 && changes.length === 0;
}

function cautious(plan: Plan, why: string | undefined): Plan {
  if (why === undefined) return plan;
  return { ...plan, asks: plan.asks.map((ask) => ({ ...ask, alwaysAsk: ask.alwaysAsk ?? why })) };
}

function planExecute({ rawInput }: AcpUse, at: Place): Promise<Plan> | undefined {
  const command = commandIn(rawInput.command);
  if (command === undefined) return undefined;
  const workdir = textIn(rawInput, ["workdir", "cwd"]);
  const description = textIn(rawInput, ["description"]);
  const alwaysAsk = unknownFields(rawInput, ["command", "cwd", "workdir", "description", "timeout"]);
  return planCommand({ command, workdir, description, alwaysAsk }, at);
}

/** Returns a command line; a list of words is quoted, and that of a shell is the line that it runs. */
function commandIn(value: JsonValue | undefined): string | undefined {
  if (typeof value === "string") return value.trim() === "" ? undefined : value;
  if (!Array.isArray(value) || value.length === 0) return undefined;
  const words = value.filter((word) => typeof word === "string");
  if (words.length < value.length) return undefined;
  const [shell = "", option = "", line = "", ...more] = words;
  const isShell = /^(\/bin\/|\/usr\/bin\/)?(ba)?sh$/.test(shell) && /^-l?c$/.test(option);
  return isShell && line !== "" && more.length === 0 ? line : words.map(quoted).join(" ");
}

const quoted = (word: string) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);

/** Plans uses of files: each path that the request names, wherever it names it, asks. */
function planPaths(permission: string, fields: readonly string[], { isDeletion = false } = {}): KindPlan {
  return async (use, at) => {
    const paths = await pathsOf(use, at);
    if (paths.length === 0) return undefined;
    const asks = paths.flatMap((path) => at.asks(permission, path, { filepath: path.absolute }));
    const deleted = isDeletion
      ? asks.map((ask) => (ask.permission === permission ? { ...ask, deletes: ask.patterns } : ask))
      : asks;
    const shown = paths.map(({ pattern }) => pattern);
    const plan = {
      title: shown.join(", "),
      asks: deleted,
      inspect: async () => ({ preview: () => ({ paths: shown }) }),
    };
    return cautious(plan, unknownFields(use.rawInput, [...pathFields, ...fields]));
  };
}

/** Plans a change of files. The diffs that the agent sent are shown; an approval of one file is bound to its content. */
async function planEdit(use: AcpUse, at: Place): Promise<Plan | undefined> {
  const paths = await pathsOf(use, at);
  const [first, ...others] = paths;
  if (first === undefined) return undefined;
  const { changes, rawInput } = use;
  const surprise = unknownFields(rawInput, [...pathFields, ...editFields]);
  if (others.length === 0 && changes.length > 0)
    return cautious(await planChange(first.absolute, changeOf(changes), at), surprise);
  const asks = paths.flatMap((path) => at.asks("edit", path, { filepath: path.absolute }));
  const shown = paths.map(({ pattern }) => pattern);
  const diff = changes.length > 0 ? changes.map(diffOf).join("\n") : (textIn(rawInput, ["diff", "patch"]) ?? "");
  const inspect = async () => ({ preview: () => ({ diff, paths: shown }) });
  return cautious({ title: shown.join(", "), asks, binds: paths, inspect }, surprise);
}

type Changes = AcpUse["changes"];

/** Makes the change of one file: a whole new content, or pieces that are replaced. */
function changeOf(changes: Changes) {
  const [only, ...more] = changes;
  if (only !== undefined && more.length === 0 && !only.oldText) return contentChange(only.newText);
  return editsOf(
    changes.map(({ oldText = "", newText }) => ({ oldString: oldText, newString: newText, replaceAll: false })),
  );
}

/** Makes the difference of one piece, by itself: where it stands in its file is not looked up. */
function diffOf({ path, oldText, newText }: Changes[number]): string {
  return compare(path, oldText === undefined ? undefined : { text: oldText }, newText).diff;
}

function planSearch({ rawInput }: AcpUse, at: Place): Promise<Plan> | undefined {
  const pattern = textIn(rawInput, ["pattern", "query"]);
  if (pattern === undefined) return undefined;
  const [path, include] = [textIn(rawInput, ["path", "dir_path"]), textIn(rawInput, ["include", "glob"])];
  // A pattern of file names can lead elsewhere by itself.
  const leads = [pattern, include ?? ""].some((text) => /^[/~]|\.\./.test(text));
  const surprise = leads
    ? "may lead outside the workspace"
    : unknownFields(rawInput, ["pattern", "query", "path", "dir_path", "include", "glob"]);
  return planGrep({ pattern, path, include }, at).then((plan) => cautious(plan, surprise));
}

function planWeb({ rawInput }: AcpUse): Plan | undefined {
  const [url, query] = [textIn(rawInput, ["url"]), textIn(rawInput, ["query"])];
  const surprise = unknownFields(rawInput, ["url", "query", "format", "timeout", "prompt"]);
  if (url !== undefined && query === undefined) return cautious(planFetch(url), surprise);
  return query !== undefined && url === undefined ? cautious(planNamed("websearch", query), surprise) : undefined;
}

/** Resolves the paths of a request, each once. */
async function pathsOf({ rawInput, locations, changes }: AcpUse, at: Place): Promise<PathHandle[]> {
  const named = pathFields.flatMap((field) => textIn(rawInput, [field]) ?? []);
  const all = [...changes.map(({ path }) => path), ...named, ...locations];
  const paths = await Promise.all([...new Set(all)].map(at.resolve));
  return [...new Map(paths.map((path) => [path.absolute, path])).values()];
}

/** Returns the first of some fields that is a text and not empty. */
function textIn(rawInput: JsonObject, fields: readonly string[]): string | undefined {
  return fields.map((field) => rawInput[field]).find((value) => typeof value === "string" && value !== "") as
    | string
    | undefined;
}

/** Returns the reason to ask about fields whose meaning is not known: they may change what the others say. */
function unknownFields(rawInput: JsonObject, known: readonly string[]): string | undefined {
  const isKnown = (field: string, value: JsonValue | undefined) =>
    known.includes(field) && (typeof value !== "object" || listFields.includes(field));
  const unknown = Object.keys(rawInput).filter((field) => !isKnown(field, rawInput[field]));
  if (unknown.length === 0) return undefined;
  const shown = unknown.slice(0, 3).map((field) => JSON.stringify(field.slice(0, 40)));
  return `was asked for with fields that Toolgate does not know: ${shown.join(", ")}`;
}

/** Fields in which agents name files. */
const pathFields = [
  ...["path", "filePath", "file_path", "filepath", "absolute_path", "abs_path", "notebook_path"],
  ...["source", "destination", "old_path", "new_path"],
];
/** Fields that are no single value. */
const listFields = ["command", "content", "edits"];
/** Fields with which agents describe a change of a file. */
const editFields = [
  ...["diff", "patch", "content", "edits", "old_string", "new_string", "replace_all"],
  ...["oldString", "newString", "replaceAll"],
];

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
const claudeTools: Readonly<Record<string, Mapping>> = {
  Bash: mapping({
    permissions: ["bash"],
    input: z.object({
      command: z.string().min(1),
      description: z.string().optional(),
      dangerouslyDisableSandbox: z.boolean().optional(),
    }),
    keep: { end: "tail" },
    plan: ({ command, description, dangerouslyDisableSandbox }, at) =>
      planCommand({ command, description, ...(dangerouslyDisableSandbox && { alwaysAsk: outsideSandbox }) }, at),
  }),
  Read: readOf("file_path"),
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
  Write: writeOf("file_path"),
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
  Glob: opencodeTools.glob,
  Grep: mapping({
    permissions: ["grep"],
    input: z.object({ pattern: path, path: path.optional(), glob: path.optional(), type: z.string().optional() }),
    readOnly: true,
    plan: ({ pattern, path: place, glob, type }, at) => planGrep({ pattern, path: place, include: glob ?? type }, at),
  }),
  WebFetch: opencodeTools.webfetch,
  WebSearch: opencodeTools.websearch,
  Agent: task,
  Task: task,
  Skill: mapping({
    permissions: ["skill"],
    input: z.object({ skill: z.string().optional(), command: z.string().optional(), name: z.string().optional() }),
    plan: ({ skill, command, name }) => planNamed("skill", skill ?? command ?? name ?? ""),
  }),
  TodoWrite: opencodeTools.todowrite,
};

const kinds = {
  ...{ acp: acpTools, claude: claudeTools, opencode: opencodeTools },
  ...{ codex: codexTools, gemini: geminiTools, copilot: copilotTools },
};

/** Mappings by name. */
const mapped: ReadonlyMap<string, Mapping> = new Map(
  Object.entries(kinds).flatMap(([kind, tools]) =>
    Object.entries(tools).map(([tool, made]) => [foreignName({ kind, tool }), made] as const),
  ),
);

const maxMade = 1_000;

/** Creates the tools of agents that run them themselves. */
export function createForeignTools(): ForeignTools {
  const made = new Map<string, { tool: Tool; plan: Mapping["plan"] }>();

  function find(name: string) {
    const known = made.get(name);
    if (known) return known;
    const found = mapped.get(name) ?? unmapped(name);
    const created = { tool: toolOf(name, found), plan: found.plan };
    if (made.size === maxMade) made.clear();
    made.set(name, created);
    return created;
  }

  return {
    tool(name, place) {
      const { tool, plan } = find(name);
      return place === undefined ? tool : at(tool, plan, place);
    },
    isMapped: (name) => mapped.has(name),
  };
}

/** Returns the tool as it is planned at a place. */
function at(tool: Tool, plan: Mapping["plan"], place: ForeignPlace): Tool {
  return Object.freeze({ ...tool, plan: async (input, ctx) => await plan(input, placeOf(ctx, place)) } satisfies Tool);
}

function toolOf(name: string, { permissions, input, readOnly = false, keep }: Mapping): Tool {
  const tool = defineTool({
    description: `${name}, which the agent runs itself.`,
    version: "1",
    input,
    permissions,
    readOnly,
    ...(keep && { keep }),
    plan() {
      throw new Error(`${name} is planned at the place of a call only`);
    },
    execute() {
      throw new Error(`${name} runs in the agent that asked`);
    },
  });
  return bindForeignTool(name, tool);
}

/** Makes the plan of a tool that has no mapping: it asks with its whole input, for the permission of its name. */
function unmapped(name: string): Mapping {
  const permission = mcpPermission(name) ?? name;
  return mapping({
    permissions: [permission],
    input: z.looseObject({}),
    plan: (input) => ({ ...wholeInput(permission, input), title: name }),
  });
}

/**
 * Returns the permission of a tool of an MCP server, `SERVER_TOOL` for Claude Code's `mcp__SERVER__TOOL`. A name that would be
 * that of a built-in permission has none of these: a server must not choose a permission that rules allow for another purpose.
 */
function mcpPermission(name: string): string | undefined {
  const [, server = "", tool = ""] = /^claude:mcp__(.+?)__(.+)$/.exec(name) ?? [];
  const permission = `${server}_${tool}`;
  if (tool === "" || /^todo|^(external_directory|doom_loop|apply_patch|background_task)$/.test(permission))
    return undefined;
  return permission;
}
