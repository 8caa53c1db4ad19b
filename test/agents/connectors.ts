import { existsSync } from "node:fs";
import { mkdir, writeFile } from "node:fs/promises";
import { userInfo } from "node:os";
import { dirname, join } from "node:path";
import { setTimeout } from "node:timers/promises";
import { PermissionService } from "../../gen/opencode/tool/v1/permission_service_pb.ts";
import { PermissionReply, type PermissionRequest } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { opencodePlugin } from "../../src/agents/hooks/opencode-plugin.ts";
import { blockWithReason } from "../../src/cli/connect/agent-files.ts";
import { configureCodex } from "../../src/cli/connect/codex.ts";
import { clientOf } from "../e2e/clients.ts";
import type { Service } from "../e2e/service.ts";
import { programEntry } from "../main.ts";
import {
  type AgentPlace,
  type AgentRun,
  createPlace,
  runClaude,
  runCodex,
  runCopilot,
  runGemini,
  runOpencode,
} from "./agents.ts";
import {
  type MockModel,
  type Script,
  type Steps,
  serveAnthropic,
  serveGemini,
  serveOpenAi,
  serveResponses,
} from "./mock-models.ts";
import { agentPrograms } from "./programs.ts";

/** Settings of a connector; each field can be wrong. */
export interface ConnectorOptions {
  server: string;
  token: string;
  /** The agent's limit in seconds; the hook answers 5 s before. */
  timeout: number;
  /** The program, in place of ours. */
  program: readonly string[];
  /** Flags that override the right ones. */
  more?: readonly string[];
}

/** One way in which an agent asks here. */
export interface Connector {
  /** The kind of the agent whose column it measures; empty: none. */
  readonly kind: string;
  /** A use of the agent's tool that starts a subagent with this prompt, for agents that have subagents. */
  subagent?(prompt: string): Steps;
  /** A use that writes this line into a shell that was approved and runs already. */
  terminal?(line: string): Script;
  /** A use in a directory that the model names beside the command, for agents that let it. */
  elsewhere?(command: string, directory: string): Script;
  /** A use of the agent's own tool that leaves the file `marker`. */
  script(command: string): Script;
  serve(script: Script): Promise<MockModel>;
  /** Runs the agent to its end. Without options it has no connector, and its own rules allow the tool. */
  run(place: AgentPlace, model: MockModel, options?: ConnectorOptions): Promise<AgentRun>;
}

/** The words that run our program. */
export const ownProgram = [process.execPath, programEntry()];

async function hookCommand(place: AgentPlace, kind: string, options: ConnectorOptions): Promise<string[]> {
  const tokenFile = join(place.home, "token");
  await writeFile(tokenFile, options.token, { mode: 0o600 });
  const { program, server, timeout, more = [] } = options;
  const flags = ["--server", server, "--token-file", tokenFile, "--uid", `${process.getuid?.()}`];
  return [...program, "hook", kind, ...flags, "--timeout", `${timeout}`, ...more];
}

async function promptCommand(place: AgentPlace, options: ConnectorOptions): Promise<string[]> {
  const [program, ...words] = await hookCommand(place, "claude", {
    ...options,
    timeout: Math.max(options.timeout - 5, 1),
  });
  return [program ?? "", ...words.map((word) => (word === "hook" ? "mcp-approve" : word))];
}

/** Writes a file of settings with hooks for `--settings`; returns its path. */
export async function claudeSettings(place: AgentPlace, hook: object): Promise<string> {
  const events = ["PreToolUse", "PostToolUse", "PostToolUseFailure"];
  const hooks = Object.fromEntries(events.map((event) => [event, [{ matcher: "*", hooks: [hook] }]]));
  const file = join(place.home, "settings.json");
  await writeFile(file, JSON.stringify({ hooks }));
  return file;
}

const bash = { description: "leaves a marker" };

/** The connectors that run a program of ours. */
export const connectors = {
  "the command hook of Claude Code": {
    kind: "claude",
    subagent: (prompt) => [{ tool: "Agent", input: { ...bash, prompt, subagent_type: "general-purpose" } }],
    script: (command) => [["go", [{ tool: "Bash", input: { command, ...bash } }]]],
    serve: serveAnthropic,
    async run(place, model, options) {
      // The rule would let the tool run without the hook.
      const rule = ["--allowedTools", "Bash"];
      if (options === undefined) return await runClaude(place, model, rule);
      const words = (await hookCommand(place, "claude", options)).join(" ");
      const hook = { type: "command", command: `sh -c '${words} || exit 2'`, onFailure: "block" };
      const settings = await claudeSettings(place, { ...hook, timeout: options.timeout });
      return await runClaude(place, model, ["--settings", settings, ...rule]);
    },
  },
  "the permission prompt tool of Claude Code": {
    kind: "",

    script: (command) => [["go", [{ tool: "Bash", input: { command, ...bash } }]]],
    serve: serveAnthropic,
    async run(place, model, options) {
      if (options === undefined) return await runClaude(place, model, ["--allowedTools", "Bash"]);
      const [command = "", ...args] = await promptCommand(place, options);
      const config = JSON.stringify({ mcpServers: { gate: { command, args } } });
      const tool = ["--permission-prompt-tool", "mcp__gate__approve", "--permission-mode", "manual"];
      return await runClaude(place, model, ["--mcp-config", config, "--strict-mcp-config", ...tool]);
    },
  },
  "the plugin of opencode": {
    kind: "opencode",
    subagent: (prompt) => [{ tool: "task", input: { ...bash, prompt, subagent_type: "general" } }],
    script: (command) => [["go", [{ tool: "bash", input: { command, ...bash } }]]],
    serve: serveOpenAi,
    async run(place, model, options) {
      if (options !== undefined) {
        const directory = join(place.home, ".config/opencode/plugin");
        await mkdir(directory, { recursive: true });
        await writeFile(join(directory, "toolgate.js"), opencodePlugin(await hookCommand(place, "opencode", options)));
      }
      return await runOpencode(place, model);
    },
  },
  "the hook of Codex": {
    kind: "codex",
    terminal: (line) => [
      [
        "go",
        (results) => {
          if (results.length === 0)
            return { tool: "exec_command", input: { cmd: "sh", tty: true, yield_time_ms: 500 } };
          const [, id] = /session ID (\d+)/i.exec(results.join()) ?? [];
          const input = { session_id: Number(id), chars: `${line}\n`, yield_time_ms: 2_000 };
          return results.length === 1 ? { tool: "write_stdin", input } : undefined;
        },
      ],
    ],
    // It ends without waiting for its subagents, unless the model waits.
    subagent: (message) => (results) => {
      const namespace = "multi_agent_v1";
      if (results.length === 0) return { namespace, tool: "spawn_agent", input: { message } };
      const [, id = ""] = /agent_id[^0-9a-f]+([0-9a-f-]+)/.exec(results.join()) ?? [];
      const isWaiting = results.some((result) => result.includes("timed_out"));
      return isWaiting ? undefined : { namespace, tool: "wait_agent", input: { targets: [id], timeout_ms: 60_000 } };
    },
    script: (command) => [["go", [{ tool: "exec_command", input: { cmd: command } }]]],
    elsewhere: (command, workdir) => [["go", [{ tool: "exec_command", input: { cmd: command, workdir } }]]],
    serve: serveResponses,
    async run(place, model, options) {
      if (options !== undefined) {
        const command = `sh -c '${(await hookCommand(place, "codex", options)).join(" ")} || ${blockWithReason}'`;
        const hook = [{ matcher: "*", hooks: [{ type: "command", command, timeout: options.timeout }] }];
        await writeSettings(place, ".codex/hooks.json", { hooks: { PreToolUse: hook, PostToolUse: hook } });
        const trusted = `[projects.${JSON.stringify(place.workspace)}]\ntrust_level = "trusted"\n`;
        await writeFile(join(place.home, ".codex/config.toml"), trusted);
        const codex = {
          program: agentPrograms.codex,
          user: { ...userInfo(), name: "", home: place.home, env: process.env },
        };
        await configureCodex(codex, [], command);
      }
      return await runCodex(place, model);
    },
  },
  "the hook of Gemini CLI": {
    kind: "gemini",
    subagent: (prompt) => [{ tool: "invoke_agent", input: { agent_name: "generalist", prompt } }],
    script: (command) => [["go", [{ tool: "run_shell_command", input: { command, ...bash } }]]],
    serve: serveGemini,
    async run(place, model, options) {
      const command =
        options && `sh -c '${(await hookCommand(place, "gemini", options)).join(" ")} || ${blockWithReason}'`;
      const timeout = (options?.timeout ?? 0) * 1_000;
      const hook = [{ matcher: "*", hooks: [{ name: "toolgate", type: "command", command, timeout }] }];
      const hooks = command === undefined ? {} : { hooks: { BeforeTool: hook, AfterTool: hook } };
      const auth = { security: { auth: { selectedType: "gemini-api-key" } } };
      await writeSettings(place, ".gemini/settings.json", { ...auth, ...hooks });
      return await runGemini(place, model);
    },
  },
  "the hook of GitHub Copilot CLI": {
    kind: "copilot",
    subagent: (prompt) => [{ tool: "task", input: { ...bash, name: "sub", prompt, agent_type: "general-purpose" } }],
    script: (command) => [["go", [{ tool: "bash", input: { command, ...bash } }]]],
    serve: serveOpenAi,
    async run(place, model, options) {
      if (options === undefined) return await runCopilot(place, model, ["--allow-all-tools"]);
      const command = `sh -c '${(await hookCommand(place, "copilot", options)).join(" ")} || ${blockWithReason}'`;
      const hook = [{ type: "command", bash: command, timeoutSec: options.timeout }];
      const hooks = { preToolUse: hook, postToolUse: hook, postToolUseFailure: hook };
      await writeSettings(place, ".copilot/hooks/toolgate.json", { version: 1, hooks });
      return await runCopilot(place, model);
    },
  },
} satisfies Record<string, Connector>;

/** Writes a file of settings below the home of an agent. */
async function writeSettings({ home }: AgentPlace, path: string, settings: object): Promise<void> {
  await mkdir(dirname(join(home, path)), { recursive: true });
  await writeFile(join(home, path), JSON.stringify(settings));
}

/** HTTP hooks of Claude Code: no program of ours runs beside the agent. */
export const httpHook: Connector = {
  kind: "",
  script: (command) => [["go", [{ tool: "Bash", input: { command, ...bash } }]]],
  serve: serveAnthropic,
  async run(place, model, options) {
    // The rule would let the tool run without the hook.
    const rule = ["--allowedTools", "Bash"];
    if (options === undefined) return await runClaude(place, model, rule);
    const { server, timeout, token } = options;
    const headers = { Authorization: "Bearer $TOOLGATE_HOOK_TOKEN" };
    const url = `${server}/hooks/claude?timeout=${timeout}`;
    const hook = { type: "http", url, headers, timeout, onFailure: "block" };
    const settings = await claudeSettings(place, { ...hook, allowedEnvVars: ["TOOLGATE_HOOK_TOKEN"] });
    return await runClaude(place, model, ["--settings", settings, ...rule], { TOOLGATE_HOOK_TOKEN: token });
  },
};

/** A run of an agent that uses one tool. */
export interface ToolRun extends AgentRun {
  hasMarker: boolean;
  /** The results of tools that reached the model. */
  results: readonly string[];
}

/** Runs an agent in a workspace, with a tool that leaves a marker if it runs. */
export async function runTool(
  connector: Connector,
  workspace: string,
  options?: ConnectorOptions,
  script = connector.script("touch marker"),
): Promise<ToolRun> {
  const place = await createPlace(workspace);
  const model = await connector.serve(script);
  const run = await connector.run(place, model, options);
  return { ...run, hasMarker: existsSync(join(workspace, "marker")), results: model.results };
}

/** Answers all requests until a run is over: rejects what names the marker, approves everything else. */
export async function answerAll<T>({ url }: Pick<Service, "url">, running: Promise<T>): Promise<T> {
  const permissions = clientOf(PermissionService, url, "approver-token-for-tests");
  let isOver = false;
  const end = () => {
    isOver = true;
  };
  running.then(end, end);
  while (!isOver) {
    for (const { id: permissionId, sessionId, patterns } of (await permissions.listPermissions({})).permissions) {
      const isMarked = patterns.some((pattern) => pattern.includes("marker"));
      const reply = isMarked ? PermissionReply.REJECT : PermissionReply.ONCE;
      // A rejection withdraws the other requests of its call.
      await permissions.respondToPermission({ permissionId, sessionId, reply }).catch(() => undefined);
    }
    await setTimeout(100);
  }
  return await running;
}

/** Waits for the next open request of a service. */
export async function nextRequest(service: Service): Promise<PermissionRequest> {
  const { watchPermissions } = clientOf(PermissionService, service.url, "approver-token-for-tests");
  for await (const { event } of watchPermissions({})) {
    if (event?.event.case === "permissionAsked") return event.event.value;
  }
  throw new Error("the watch ended");
}

/** Waits for the next open request and answers it. */
export async function answerNext(
  service: Service,
  reply: PermissionReply,
  more: object = {},
): Promise<PermissionRequest> {
  const request = await nextRequest(service);
  const { id: permissionId, sessionId } = request;
  const approver = clientOf(PermissionService, service.url, "approver-token-for-tests");
  await approver.respondToPermission({ permissionId, sessionId, reply, ...more });
  return request;
}
