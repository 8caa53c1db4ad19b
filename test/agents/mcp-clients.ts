import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import type { JsonObject } from "@bufbuild/protobuf";
import { type AgentPlace, type AgentRun, createPlace, runClaude, runOpencode } from "./agents.ts";
import { ownProgram } from "./connectors.ts";
import { type MockModel, type NextStep, type Steps, serveAnthropic, serveOpenAi } from "./mock-models.ts";

/** Transports of our MCP server. */
export type McpTransport = "stdio" | "HTTP";

/** An agent that uses the tools of our MCP server, by the name `toolgate`. */
export interface McpAgent {
  /** Name of a tool of ours as the model sees it. */
  toolName(name: string): string;
  serve: typeof serveAnthropic;
  run(place: AgentPlace, model: MockModel, transport: McpTransport, server: McpServerPlace): Promise<AgentRun>;
}

/** A service, as an agent is configured with it. */
export interface McpServerPlace {
  url: string;
  workspace: string;
  /** The agent's limit of a request; absent: its default. Claude Code abandons a request only when its connection ends. */
  limitMs?: number;
}

const token = "caller-token-for-tests";
const headers = { Authorization: `Bearer ${token}` };

/** Returns the words that run `toolgate mcp`. */
async function mcpWords({ home }: AgentPlace, url: string): Promise<string[]> {
  const tokenFile = join(home, "mcp-token");
  await writeFile(tokenFile, token, { mode: 0o600 });
  return [...ownProgram, "mcp", "--server", url, "--token-file", tokenFile];
}

/** The agents; their own rules allow each tool of ours. */
export const mcpAgents: Readonly<Record<string, McpAgent>> = {
  "Claude Code": {
    toolName: (name) => `mcp__toolgate__${name}`,
    serve: serveAnthropic,
    async run(place, model, transport, { url }) {
      const [command, ...args] = await mcpWords(place, url);
      const toolgate = transport === "stdio" ? { command, args } : { type: "http", url: `${url}/mcp`, headers };
      const config = JSON.stringify({ mcpServers: { toolgate } });
      // Offers the tools of MCP servers without a search for them.
      const env = { ENABLE_TOOL_SEARCH: "false" };
      const rule = ["--allowedTools", "mcp__toolgate"];
      return await runClaude(place, model, ["--mcp-config", config, "--strict-mcp-config", ...rule], env);
    },
  },
  opencode: {
    toolName: (name) => `toolgate_${name}`,
    serve: serveOpenAi,
    async run(place, model, transport, { url, limitMs: timeout }) {
      const toolgate =
        transport === "stdio"
          ? { type: "local", command: await mcpWords(place, url), enabled: true, timeout }
          : { type: "remote", url: `${url}/mcp`, headers, oauth: false, enabled: true, timeout };
      return await runOpencode(place, model, { mcp: { toolgate }, permission: { "*": "allow" } });
    },
  },
};

/** Work that an agent was asked to do through our MCP server. */
export interface McpRun extends AgentRun {
  /** The results of tools that reached the model. */
  results: readonly string[];
}

/** Runs an agent whose model uses tools of ours. */
export async function runMcp(
  agent: McpAgent,
  transport: McpTransport,
  server: McpServerPlace,
  steps: Steps,
): Promise<McpRun> {
  const place = await createPlace(server.workspace);
  const model = await agent.serve([["go", steps]]);
  const run = await agent.run(place, model, transport, server);
  return { ...run, results: model.results };
}

/** Uses a tool once, and `toolgate_wait` as often as a result says that nothing has run yet, or that it is running. */
export function untilItRuns(agent: McpAgent, tool: string, input: JsonObject): NextStep {
  return (results) => {
    const last = results.at(-1);
    if (last === undefined) return { tool: agent.toolName(tool), input };
    // The result is JSON in the JSON of the agent.
    const [, callId] = /(?:Nothing has run yet|is still running).*?call_id[\\":]+([\w/-]+)/s.exec(last) ?? [];
    return callId === undefined ? undefined : { tool: agent.toolName("toolgate_wait"), input: { call_id: callId } };
  };
}
