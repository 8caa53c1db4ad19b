import { existsSync } from "node:fs";
import { dirname, join } from "node:path";
import type { JsonObject } from "@bufbuild/protobuf";
import { stringify } from "smol-toml";
import { agentFacts, hookName } from "../../agents/hooks/agent-facts.ts";
import { opencodePlugin } from "../../agents/hooks/opencode-plugin.ts";
import type { PeerProof } from "../../client/verified-socket.ts";
import { assets } from "../../core/assets.ts";
import { shellCommand } from "../../view/words.ts";
import { hookTimeout } from "../hook/run-hook.ts";
import type { AgentUser } from "./agent-user.ts";
import type { CodexEdit } from "./codex.ts";
import type { JsonEntry } from "./file-change.ts";
import type { AgentKind } from "./record.ts";

/** Entries that a connector writes into the configuration of an agent. */
export interface AgentFiles {
  /** JSON files of the agent, and our entries in them. One of the system belongs to root and holds for all users. */
  readonly json: readonly {
    readonly path: string;
    readonly entries: readonly JsonEntry[];
    readonly isSystem?: boolean;
  }[];
  /** Whole files of ours. One of the system must not exist before, since it cannot be merged. */
  readonly whole: readonly { readonly path: string; readonly text: string; readonly isSystem?: boolean }[];
  /** Values that Codex writes into its configuration itself. */
  readonly codex?: readonly CodexEdit[];
}

/** Programs and files that the configuration of an agent names. */
export interface AgentFilesOptions {
  /** The words that run this program, by absolute paths. */
  readonly program: readonly string[];
  readonly server: string;
  /** Proof of the service that the hooks verify. */
  readonly proof: PeerProof;
  readonly ca: string | undefined;
  /** The name of our MCP server there, whose tools pass its hooks, since they ask by themselves; empty: it gets none. */
  readonly mcpName: string;
  /** The file of the token of the MCP server. */
  readonly mcpTokenFile: string;
  /** The file of the token of the hooks. */
  readonly hookTokenFile: string;
  /** True if Claude Code sends HTTP requests instead of running our command. */
  readonly isHttpHook: boolean;
  /** True if the hooks go into the settings of the machine. */
  readonly isSystem: boolean;
}

/** Returns what to write for a kind of agent. */
export const agentFiles: Readonly<Record<AgentKind, (user: AgentUser, options: AgentFilesOptions) => AgentFiles>> = {
  claude: claudeFiles,
  codex: codexFiles,
  copilot: copilotFiles,
  gemini: geminiFiles,
  opencode: opencodeFiles,
  mcp: () => ({ json: [], whole: [] }),
};

/** Returns the command of our MCP server. */
export function mcpCommand({
  program,
  server,
  ca,
  mcpTokenFile,
}: Pick<AgentFilesOptions, "program" | "server" | "ca" | "mcpTokenFile">): string[] {
  return [
    ...program,
    "mcp",
    "--server",
    server,
    ...(ca === undefined ? [] : ["--ca", ca]),
    "--token-file",
    mcpTokenFile,
  ];
}

/** Returns the files that a hook runs. */
export const hookPrograms = ([node = ""]: readonly string[]): string[] => [node, assets.hookProgram];

/** Returns the command of a hook. It names everything itself: a project may set the environment of the hooks of its agent. */
export function hookCommand(
  kind: Exclude<AgentKind, "mcp">,
  {
    program,
    server,
    proof: { uid, certificate },
    ca,
    mcpName,
    hookTokenFile,
  }: Omit<AgentFilesOptions, "mcpTokenFile" | "isHttpHook" | "isSystem">,
): string[] {
  return [
    ...[...hookPrograms(program), kind, "--server", server, "--token-file", hookTokenFile],
    ...(uid === undefined ? [] : ["--uid", `${uid}`]),
    ...(certificate === undefined ? [] : ["--certificate", certificate]),
    ...(ca === undefined ? [] : ["--ca", ca]),
    ...(mcpName === "" ? [] : ["--mcp", mcpName]),
  ];
}

/** Returns the line that runs a hook in an empty environment, and blocks if the program is missing. */
function hookLine(words: readonly string[], otherwise = "exit 2"): string {
  return shellCommand(["/bin/sh", "-c", `/usr/bin/env -i HOME="$HOME" ${shellCommand(words)} || ${otherwise}`]);
}

/** Blocks with a reason: without one Codex would run the tool. */
export const blockWithReason = '{ echo "Toolgate: the hook did not run. Nothing was run." >&2; exit 2; }';

/** The variable with the token of an HTTP hook, since configuration files contain no token. */
export const httpHookVariable = "TOOLGATE_HOOK_TOKEN";

/** Returns the settings of the whole machine that can hold the hooks of an agent. */
function machineSettingsOf(kind: AgentKind): string {
  const path = agentFacts[kind]?.machineSettings;
  if (path === undefined) throw new Error(`${kind} has no settings of the machine`);
  return path;
}

const hookEntries = (events: readonly string[], hook: JsonObject) =>
  events.map((event) => ({ path: ["hooks", event], value: { matcher: "*", hooks: [hook] }, isItem: true }));

function claudeFiles({ env, home }: AgentUser, options: AgentFilesOptions): AgentFiles {
  const directory = env.CLAUDE_CONFIG_DIR || join(home, ".claude");
  const [command = "", ...args] = mcpCommand(options);
  const hooks = hookEntries(["PreToolUse", "PostToolUse", "PostToolUseFailure"], claudeHook(options));
  const server = { type: "stdio", command, args };
  // Without the second entry the hooks of a project run, too, and its settings switch off those of the user.
  const managed = [...hooks, { path: ["allowManagedHooksOnly"], value: true }];
  if (options.isSystem)
    return { json: [{ path: machineSettingsOf("claude"), entries: managed, isSystem: true }], whole: [] };
  return {
    json: [
      { path: join(directory, "settings.json"), entries: hooks },
      {
        path: join(env.CLAUDE_CONFIG_DIR || home, ".claude.json"),
        entries: [{ path: ["mcpServers", options.mcpName], value: server }],
      },
    ],
    whole: [],
  };
}

function claudeHook(options: AgentFilesOptions) {
  const { server, mcpName, isHttpHook } = options;
  const handling = { timeout: hookTimeout, onFailure: "block" };
  if (!isHttpHook) return { type: "command", command: hookLine(hookCommand("claude", options)), ...handling };
  const headers = { Authorization: `Bearer $${httpHookVariable}` };
  const url = `${server}/hooks/claude?mcp=${mcpName}`;
  return { type: "http", url, headers, allowedEnvVars: [httpHookVariable], ...handling };
}

function opencodeFiles({ env, home }: AgentUser, options: AgentFilesOptions): AgentFiles {
  const directory = join(env.XDG_CONFIG_HOME || join(home, ".config"), "opencode");
  const names = ["opencode.jsonc", "opencode.json"].map((name) => join(directory, name));
  const path = names.find((name) => existsSync(name)) ?? join(directory, "opencode.json");
  const value = { type: "local", command: mcpCommand(options), enabled: true };
  const plugin = opencodePlugin(hookCommand("opencode", options));
  return {
    json: [{ path, entries: [{ path: ["mcp", options.mcpName], value }] }],
    whole: [{ path: join(directory, "plugin", "toolgate.js"), text: plugin }],
  };
}

function codexFiles({ env, home }: AgentUser, options: AgentFilesOptions): AgentFiles {
  const directory = env.CODEX_HOME || join(home, ".codex");
  const hook = {
    type: "command",
    command: hookLine(hookCommand("codex", options), blockWithReason),
    timeout: hookTimeout,
  };
  const entries = hookEntries(["PreToolUse", "PostToolUse"], hook);
  const [command = "", ...args] = mcpCommand(options);
  const server = { keyPath: `mcp_servers.${options.mcpName}`, value: { command, args } };
  // What is written to the terminal of a program that runs already fires no hook.
  const features = { hooks: true, unified_exec_tty: false };
  if (!options.isSystem)
    return {
      json: [{ path: join(directory, "hooks.json"), entries }],
      whole: [],
      codex: [{ keyPath: "features.unified_exec_tty", value: features.unified_exec_tty }, server],
    };
  const hooks = Object.fromEntries(entries.map(({ path: [, event = ""], value }) => [event, [value]]));
  const requirements = machineSettingsOf("codex");
  const managed = {
    allow_managed_hooks_only: true,
    features,
    hooks: { managed_dir: dirname(requirements), ...hooks },
  };
  return {
    json: [],
    whole: [{ path: requirements, text: `${stringify(managed)}\n`, isSystem: true }],
    codex: [server],
  };
}

function geminiFiles({ home }: AgentUser, options: AgentFilesOptions): AgentFiles {
  const hook = {
    ...{ name: hookName, type: "command", timeout: hookTimeout * 1_000 },
    command: hookLine(hookCommand("gemini", options), blockWithReason),
  };
  const entries = hookEntries(["BeforeTool", "AfterTool"], hook);
  const [command = "", ...args] = mcpCommand(options);
  const server = { path: ["mcpServers", options.mcpName], value: { command, args } };
  const path = join(home, ".gemini", "settings.json");
  if (!options.isSystem) return { json: [{ path, entries: [...entries, server] }], whole: [] };
  // Without the last entry a project switches off all hooks.
  const managed = [...entries, { path: ["hooksConfig", "enabled"], value: true }];
  return {
    json: [
      { path: machineSettingsOf("gemini"), entries: managed, isSystem: true },
      { path, entries: [server] },
    ],
    whole: [],
  };
}

function copilotFiles({ env, home }: AgentUser, options: AgentFilesOptions): AgentFiles {
  const directory = env.COPILOT_HOME || join(home, ".copilot");
  const hook = {
    type: "command",
    bash: hookLine(hookCommand("copilot", options), blockWithReason),
    timeoutSec: hookTimeout,
  };
  const hooks = { preToolUse: [hook], postToolUse: [hook], postToolUseFailure: [hook] };
  const [command = "", ...args] = mcpCommand(options);
  const server = { type: "local", command, args, tools: ["*"] };
  return {
    json: [
      {
        path: join(directory, "mcp-config.json"),
        entries: [{ path: ["mcpServers", options.mcpName], value: server }],
      },
    ],
    whole: [
      { path: join(directory, "hooks", "toolgate.json"), text: `${JSON.stringify({ version: 1, hooks }, null, 2)}\n` },
    ],
  };
}
