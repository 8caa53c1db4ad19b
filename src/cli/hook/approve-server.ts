import { randomUUID } from "node:crypto";
import type { JsonObject } from "@bufbuild/protobuf";
import { Server, type ServerContext } from "@modelcontextprotocol/server";
import { claudePromptAnswer, claudePromptSchema, readClaudePrompt } from "../../dialect/claude-prompt.ts";
import { requestDecision } from "../../dialect/delegate.ts";
import type { CliContext } from "../context.ts";
import { type ConnectorConnectionOptions, connectorConnection, connectorFailure } from "./connector-connection.ts";
import { createDecisionFiles, decisionDirectory } from "./decision-files.ts";
import { createServiceCalls } from "./service-calls.ts";

/** Options of `toolgate mcp-approve`. */
export interface ApproveOptions extends ConnectorConnectionOptions {
  /** Time after which a prompt that nobody answered is denied, in seconds. */
  timeout: number;
}

/** Maximum number of prompts of one agent that wait at a time. */
const maxOpenPrompts = 20;
/** Interval of progress: clients end a call that is silent for minutes. */
const progressMs = 10_000;

/** Creates the MCP servers of one agent: their only tool answers the permission prompts of Claude Code. */
export function approveServers(
  { io, version }: Pick<CliContext, "io" | "version">,
  options: ApproveOptions,
): () => Server {
  const session = `prompt-${randomUUID()}`;
  let openCount = 0;

  async function approve(args: JsonObject, meta: Readonly<Record<string, unknown>>): Promise<JsonObject> {
    if (openCount >= maxOpenPrompts)
      return { behavior: "deny", message: `Toolgate: ${maxOpenPrompts} prompts of this agent wait already.` };
    let url = "";
    openCount += 1;
    try {
      const use = readClaudePrompt(args, meta, { session, cwd: process.cwd() });
      const connection = connectorConnection("claude", options);
      url = connection.url;
      const endsAt = performance.now() + options.timeout * 1_000;
      // Each prompt has its own connection: one that fails does not disturb the others.
      const calls = createServiceCalls(url, connection.connect, { endsAt });
      try {
        const memory = createDecisionFiles(decisionDirectory(io.env), connection.token);
        return claudePromptAnswer(use, await requestDecision({ calls, memory, endsAt }, use));
      } finally {
        calls.close();
      }
    } catch (error) {
      return { behavior: "deny", message: connectorFailure(error, url) };
    } finally {
      openCount -= 1;
    }
  }

  return () => {
    const server = new Server(
      { name: "toolgate-approve", title: "Toolgate", version },
      { capabilities: { tools: {} } },
    );
    server.setRequestHandler("tools/list", () => ({ tools: [approveTool] }));
    server.setRequestHandler("tools/call", async ({ params }, ctx) => {
      const stopProgress = startProgress(ctx);
      try {
        const answer = await approve((params.arguments ?? {}) as JsonObject, ctx.mcpReq._meta ?? {});
        // Claude Code refuses anything but one text item.
        return { content: [{ type: "text", text: JSON.stringify(answer) }] };
      } finally {
        stopProgress();
      }
    });
    return server;
  };
}

/** Sends progress until the returned function is called, if the request asks for it. */
function startProgress({ mcpReq }: ServerContext): () => void {
  const progressToken = mcpReq._meta?.progressToken;
  if (progressToken === undefined) return () => undefined;
  let progress = 0;
  const notify = () => {
    progress += 1;
    const params = { progressToken, progress, message: "Waiting for an approver." };
    mcpReq.notify({ method: "notifications/progress", params }).catch(() => undefined);
  };
  const timer = setInterval(notify, progressMs);
  return () => clearInterval(timer);
}

const approveTool = {
  name: "approve",
  description: "Answers the permission prompts of Claude Code. Only Claude Code itself may use it.",
  inputSchema: claudePromptSchema,
};
