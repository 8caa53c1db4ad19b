import type { JsonObject } from "@bufbuild/protobuf";
import type { AgentUser } from "../connect/agent-user.ts";
import type { ModelProtocol } from "./mock-model.ts";
import { markerIn } from "./sample-input.ts";

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
  /** Files that these inputs name: texts by path below the directory. */
  readonly files: Readonly<Record<string, string>>;
  /** The variables with which it talks to the mock model only. */
  env(url: string, user: AgentUser): Record<string, string>;
  /** Reads name and schema of a tool that the agent offers to its model. */
  toolOf(offered: unknown): { name: string; schema: unknown } | undefined;
  /** Checks if a tool comes from an MCP server. */
  isForeign(tool: string, mcpName: string): boolean;
}

/** The agents that a canary can run. */
export const agentPrograms: Readonly<Record<"claude" | "opencode", AgentProgram>> = {
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
    toolOf(offered) {
      const { name, input_schema: schema } = fieldsOf(offered);
      return typeof name === "string" ? { name, schema } : undefined;
    },
    isForeign: (tool) => tool.startsWith("mcp__"),
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
    toolOf(offered) {
      const { name, parameters: schema } = fieldsOf(fieldsOf(offered).function);
      return typeof name === "string" ? { name, schema } : undefined;
    },
    isForeign: (tool, mcpName) => tool.startsWith(`${mcpName}_`),
  },
};

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
