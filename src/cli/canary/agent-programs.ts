import { join } from "node:path";
import type { JsonObject, JsonValue } from "@bufbuild/protobuf";
import { applyEdits, modify } from "jsonc-parser";
import { readIfExists } from "../../core/read-files.ts";
import type { AgentUser } from "../connect/agent-user.ts";
import type { AgentKind } from "../connect/record.ts";
import type { ModelProtocol } from "./mock-model.ts";

/** A tool that an agent offers to its model. */
interface OfferedTool {
  readonly name: string;
  readonly schema: unknown;
  readonly namespace?: string;
}

/** The way to run an agent against a mock model. */
export interface AgentProgram {
  /** Name of its program in PATH. */
  readonly name: string;
  readonly protocol: ModelProtocol;
  /** Native tools of the versions that we know: one that the agent does not offer is disabled. */
  readonly knownTools: readonly string[];
  /** Arguments for a run whose inputs name files below the directory. */
  args(directory: string): readonly string[];
  /** Arguments that ask the agent to run no hooks, which hooks at its system level survive. */
  readonly withoutHooks: readonly string[];
  /** Inputs, below a directory, of tools whose schema does not show what the agent accepts. */
  readonly samples: Readonly<Record<string, (directory: string) => JsonObject>>;
  /** Tools that fire no hook and can do nothing that needs one, with the reason. */
  readonly withoutEffect?: Readonly<Record<string, string>>;
  /** Files that these inputs name: texts by path below the directory. */
  readonly files: Readonly<Record<string, string>>;
  /** Files of another home, which the agent gets for the run: texts by path. */
  homeFiles?(user: AgentUser): Readonly<Record<string, string>>;
  /** The variables with which it talks to the mock model only. */
  env(url: string, user: AgentUser): Record<string, string>;
  /** Arguments that name the mock model, of an agent that reads no variable for it. */
  settings?(url: string): readonly string[];
  /** Reads what the agent offers to its model: a tool, or a group of tools. */
  toolsOf(offered: unknown): readonly OfferedTool[];
  /** Checks if a tool, or a group of tools, comes from an MCP server. */
  isForeign(tool: string, mcpName: string): boolean;
}

/** The agents that a canary can run. */
export const agentPrograms: Readonly<Record<Exclude<AgentKind, "mcp">, AgentProgram>> = {
  claude: {
    name: "claude",
    protocol: "anthropic",
    knownTools: ["Bash", "Edit", "Glob", "Grep", "NotebookEdit", "Read", "WebFetch", "WebSearch", "Write"],
    // Without our hook each tool would run, so that the table shows a hook that is missing.
    args: (directory) => [
      ...["-p", "canary", "--output-format", "json", "--dangerously-skip-permissions"],
      ...["--add-dir", directory],
    ],
    withoutHooks: ["--settings", JSON.stringify({ disableAllHooks: true })],
    samples: {
      // Once a year.
      CronCreate: () => ({ cron: "0 0 1 1 *", prompt: "canary" }),
      Monitor: (directory) => ({ description: "canary", timeout_ms: 1_000, command: `touch '${markerIn(directory)}'` }),
      NotebookEdit: (directory) => ({ notebook_path: `${directory}/canary.ipynb`, new_source: "canary" }),
      Skill: () => ({ skill: "canary" }),
      Workflow: () => ({ script: "export const meta = { name: 'canary', description: 'canary', phases: [] };" }),
    },
    files: {
      "canary.ipynb": JSON.stringify({ cells: [], metadata: {}, nbformat: 4, nbformat_minor: 5 }),
      ".claude/skills/canary/SKILL.md": "---\nname: canary\ndescription: canary\n---\ncanary\n",
    },
    env: (url, { uid }) => ({
      ANTHROPIC_BASE_URL: url,
      ANTHROPIC_API_KEY: "none",
      CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: "1",
      DISABLE_AUTOUPDATER: "1",
      // Offers all tools at once.
      ENABLE_TOOL_SEARCH: "false",
      ...(uid === 0 && { IS_SANDBOX: "1" }),
    }),
    toolsOf(offered) {
      const { name, input_schema: schema } = fieldsOf(offered);
      return toolOf(name, schema);
    },
    isForeign: (tool) => tool.startsWith("mcp__"),
  },
  codex: {
    name: "codex",
    protocol: "responses",
    knownTools: ["exec_command", "spawn_agent", "view_image"],
    args: () => [
      ...["exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "-c", 'model="m"'],
      ...["-c", 'model_provider="canary"', "canary"],
    ],
    withoutHooks: ["-c", "features.hooks=false"],
    samples: { spawn_agent: () => ({ message: "canary" }) },
    withoutEffect: { write_stdin: "it fires no hook; without terminals, which are off, it writes to no program" },
    files: {},
    env: () => ({}),
    settings: (url) => ["-c", `model_providers.canary={name="canary",base_url="${url}/v1",wire_api="responses"}`],
    toolsOf(offered) {
      const { type, name, parameters, tools } = fieldsOf(offered);
      if (type === "namespace" && typeof name === "string" && Array.isArray(tools))
        return tools.flatMap((tool) => this.toolsOf(tool)).map((tool) => ({ ...tool, namespace: name }));
      return type === "function" ? toolOf(name, parameters) : [];
    },
    isForeign: (tool) => tool.startsWith("mcp__"),
  },
  copilot: {
    name: "copilot",
    protocol: "openai",
    knownTools: ["bash", "create", "edit", "glob", "grep", "view"],
    // Without our hook each tool would run, so that the table shows a hook that is missing.
    args: () => ["-p", "canary", "--allow-all-tools"],
    withoutHooks: [],
    samples: {},
    files: {},
    env: (url) => ({
      COPILOT_OFFLINE: "true",
      COPILOT_PROVIDER_BASE_URL: `${url}/v1`,
      COPILOT_MODEL: "m",
      COPILOT_AUTO_UPDATE: "false",
    }),
    toolsOf: functionOf,
    isForeign: (tool, mcpName) => tool.startsWith(`${mcpName}-`),
  },
  gemini: {
    name: "gemini",
    protocol: "gemini",
    knownTools: ["glob", "grep_search", "list_directory", "read_file", "replace", "run_shell_command", "write_file"],
    args: () => ["-m", "gemini-2.5-flash", "-p", "canary", "--yolo"],
    withoutHooks: [],
    samples: {
      invoke_agent: () => ({ agent_name: "generalist", prompt: "canary" }),
      web_fetch: () => ({ prompt: "https://canary.invalid/" }),
    },
    files: {},
    // Its settings name the sign-in, and no variable overrides them.
    homeFiles(user) {
      const path = ".gemini/settings.json";
      const text = readIfExists(join(user.home, path)) ?? "{}";
      const edits = modify(text, ["security", "auth", "selectedType"], "gemini-api-key", {});
      return { [path]: applyEdits(text, edits) };
    },
    env: (url) => ({
      GOOGLE_GEMINI_BASE_URL: url,
      GEMINI_API_KEY: "none",
      GEMINI_CLI_TRUST_WORKSPACE: "true",
    }),
    toolsOf(offered) {
      const { name, parametersJsonSchema, parameters } = fieldsOf(offered);
      return toolOf(name, parametersJsonSchema ?? parameters);
    },
    isForeign: (tool, mcpName) => tool.startsWith(`mcp_${mcpName}_`),
  },
  opencode: {
    name: "opencode",
    protocol: "openai",
    knownTools: ["bash", "edit", "glob", "grep", "read", "task", "webfetch", "write"],
    args: () => ["run", "--format", "json", "canary"],
    withoutHooks: [],
    samples: {},
    files: {},
    env: (url) => ({
      OPENCODE_CONFIG_CONTENT: JSON.stringify(opencodeModel(url)),
      OPENCODE_DISABLE_MODELS_FETCH: "1",
      npm_config_offline: "true",
    }),
    toolsOf: functionOf,
    isForeign: (tool, mcpName) => tool.startsWith(`${mcpName}_`),
  },
};

/** Reads a tool as OpenAI's chat completions name it. */
function functionOf(offered: unknown): readonly OfferedTool[] {
  const { name, parameters: schema } = fieldsOf(fieldsOf(offered).function);
  return toolOf(name, schema);
}

const toolOf = (name: unknown, schema: unknown) => (typeof name === "string" ? [{ name, schema }] : []);

function opencodeModel(url: string) {
  const options = { baseURL: `${url}/v1`, apiKey: "none" };
  const models = { m: { name: "m", tool_call: true } };
  const provider = { canary: { npm: "@ai-sdk/openai-compatible", name: "canary", options, models } };
  const allowAll = { "*": "allow" };
  return {
    ...{ model: "canary/m", small_model: "canary/m", autoupdate: false, share: "disabled", provider },
    permission: allowAll,
  };
}

function fieldsOf(value: unknown): Readonly<Record<string, unknown>> {
  return typeof value === "object" && value !== null ? { ...value } : {};
}

/** A JSON Schema, as agents send it to their model. */
interface Schema {
  readonly type?: unknown;
  readonly properties?: Readonly<Record<string, Schema>>;
  readonly required?: readonly string[];
  readonly items?: Schema;
  readonly enum?: readonly JsonValue[];
  readonly const?: JsonValue;
  readonly anyOf?: readonly Schema[];
  readonly minItems?: number;
}

/**
 * Creates a harmless input that fits a tool's schema: commands and files leave a mark in the canary's directory, addresses lead
 * nowhere, and servers are our MCP server.
 */
export function sampleInput(
  schema: unknown,
  { directory, mcpName }: { directory: string; mcpName: string },
): JsonObject {
  const known = isSchema(schema) ? schema : {};
  const file = "content" in (known.properties ?? {}) ? markerIn(directory) : existingFileIn(directory);
  const sample = sampleOf("input", known, { directory, file, mcpName });
  return typeof sample === "object" && sample !== null && !Array.isArray(sample) ? sample : {};
}

function sampleOf(name: string, schema: Schema, place: Place): JsonValue {
  if (schema.const !== undefined) return schema.const;
  const [first] = schema.enum ?? [];
  if (first !== undefined) return first;
  const [option] = schema.anyOf ?? [];
  if (option !== undefined) return sampleOf(name, option, place);
  const type = Array.isArray(schema.type) ? schema.type[0] : schema.type;
  if (type === "number" || type === "integer") return 1;
  if (type === "boolean") return false;
  if (type === "array") {
    const count = Math.max(schema.minItems ?? 1, 1);
    return Array.from({ length: count }, () => sampleOf(name, schema.items ?? { type: "string" }, place));
  }
  if (type !== "object" && schema.properties === undefined) return textFor(name, place);
  const { properties = {}, required = [] } = schema;
  return Object.fromEntries(required.map((key) => [key, sampleOf(key, properties[key] ?? {}, place)]));
}

/** Places that the inputs name. */
interface Place {
  readonly directory: string;
  readonly file: string;
  readonly mcpName: string;
}

/** Returns a text for a property by its name, which is all that shows what the tool does with it. */
function textFor(name: string, { directory, file, mcpName }: Place): string {
  if (/^server$/i.test(name)) return mcpName;
  if (/command|cmd|^script/i.test(name)) return `touch '${markerIn(directory)}'`;
  if (/path|file/i.test(name)) return file;
  if (/url|uri/i.test(name)) return "https://canary.invalid/";
  if (/new_?string/i.test(name)) return "canary 2";
  return "canary";
}

/** Returns the file in the canary's directory that a tool leaves if it runs. */
function markerIn(directory: string): string {
  return `${directory}/canary-marker.txt`;
}

/** Returns the file in the canary's directory that is there from the start, with the text "canary". */
function existingFileIn(directory: string): string {
  return `${directory}/canary.txt`;
}

/** Checks if a tool replaces a text by another one. */
export function changesText(schema: unknown): boolean {
  return Object.keys((isSchema(schema) && schema.properties) || {}).some((name) => /^old_?string$/i.test(name));
}

function isSchema(value: unknown): value is Schema {
  return typeof value === "object" && value !== null;
}
