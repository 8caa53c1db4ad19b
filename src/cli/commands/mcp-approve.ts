import { randomUUID } from "node:crypto";
import type { JsonObject } from "@bufbuild/protobuf";
import { Server, type ServerContext } from "@modelcontextprotocol/server";
import { Argument, type Command } from "commander";
import { claudePromptAnswer, claudePromptSchema, readClaudePrompt } from "../../agents/hooks/claude-prompt.ts";
import { requestDecision } from "../../agents/hooks/delegate.ts";
import { serveMcpOverStdio } from "../../agents/mcp/mcp-server.ts";
import { wholeNumber, withScreen } from "../command.ts";
import type { CliContext } from "../context.ts";
import {
  type ConnectorConnectionOptions,
  connectorConnection,
  connectorFailure,
} from "../hook/connector-connection.ts";
import { createDecisionFiles, decisionDirectory } from "../hook/decision-files.ts";
import { createServiceCalls } from "../hook/service-calls.ts";

/** Defines `toolgate mcp-approve`. */
export function defineMcpApprove(command: Command, context: CliContext): void {
  command
    .description(
      "Answer the permission prompts of an agent that has no hooks: an MCP server over stdin and stdout with the tool `approve`; every failure refuses",
    )
    .addArgument(new Argument("<agent>", "the kind of agent").choices(["claude"]))
    .option("--uid <number>", "the user that owns the service's socket on this machine", wholeNumber)
    .option("--certificate <sha256>", "the SHA-256 of the certificate of an https service")
    .option("--timeout <seconds>", "the maximum time that a prompt waits", wholeNumber, 1_500)
    .addHelpText("after", approveHelp)
    .action(() =>
      withScreen(context, command, async () => {
        await serveMcpOverStdio(approveServers(context, command.optsWithGlobals<ApproveOptions>()), context.io);
      }),
    );
}

const approveHelp = `
Example:
  claude -p "…" --mcp-config '{"mcpServers":{"toolgate":{"command":"toolgate","args":["mcp-approve","claude",
    "--server","http://127.0.0.1:7420","--token-file","/home/ann/.toolgate-host","--uid","999"]}}}' \\
    --strict-mcp-config --permission-prompt-tool mcp__toolgate__approve

Claude Code asks only for what its own rules leave open. With the hooks of \`toolgate connect claude\` it asks for every tool.`;

/** Options of `toolgate mcp-approve`. */
interface ApproveOptions extends ConnectorConnectionOptions {
  /** Time after which a prompt that nobody answered is denied, in seconds. */
  timeout: number;
}

/** Maximum number of prompts of one agent that wait at a time. */
const maxOpenPrompts = 20;
/** Interval of progress: clients end a call that is silent for minutes. */
const progressMs = 10_000;

/** Creates the MCP servers of one agent: their only tool answers the permission prompts of Claude Code. */
function approveServers({ io, version }: Pick<CliContext, "io" | "version">, options: ApproveOptions): () => Server {
  const session = `prompt-${randomUUID()}`;
  let openCount = 0;

  async function approve(args: JsonObject, meta: Readonly<Record<string, unknown>>): Promise<JsonObject> {
    if (openCount >= maxOpenPrompts)
      return { behavior: "deny", message: `Toolgate: ${maxOpenPrompts} prompts of this agent wait already.` };
    openCount += 1;
    try {
      const use = readClaudePrompt(args, meta, { session, cwd: process.cwd() });
      const { url, token, send } = connectorConnection("claude", options);
      const endsAt = performance.now() + options.timeout * 1_000;
      const calls = createServiceCalls(url, send, { endsAt });
      const memory = createDecisionFiles(decisionDirectory(io.env), token);
      return claudePromptAnswer(use, await requestDecision({ calls, memory, endsAt }, use));
    } catch (error) {
      return { behavior: "deny", message: connectorFailure(error) };
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
