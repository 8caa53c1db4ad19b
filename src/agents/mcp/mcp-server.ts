import { randomUUID } from "node:crypto";
import type { Readable, Writable } from "node:stream";
import {
  ProtocolError,
  ProtocolErrorCode,
  SdkError,
  SdkErrorCode,
  Server,
  type ServerContext,
} from "@modelcontextprotocol/server";
import { StdioServerTransport, serveStdio } from "@modelcontextprotocol/server/stdio";
import { isUnreachable } from "../../client/resume-stream.ts";
import { callMcpTool, type ToolsAnswer, type ToolsCall } from "./call-tool.ts";
import { listMcpTools } from "./list-tools.ts";
import { clientOf, type McpClient, type McpSession, unnamedClient } from "./mcp-session.ts";
import { waitToolName } from "./open-call-result.ts";
import { outputTemplates, readOutputResource } from "./output-resources.ts";
import { apiFailureText, type ToolgateApi } from "./toolgate-api.ts";
import type { UncollectedCalls } from "./uncollected-calls.ts";
import { progressTo } from "./watch-reports.ts";

/** Everything that distinguishes one served connection, or one request over HTTP, from another. */
export interface McpScope {
  readonly api: ToolgateApi;
  readonly era: "legacy" | "modern";
  readonly version: string;
  /** Address of the console. */
  readonly url: string;
  readonly uncollected: UncollectedCalls;
  /** Client of a legacy request over HTTP, which does not describe itself. */
  readonly client?: McpClient;
  /** Returns the session of a client. */
  sessionOf(client: McpClient): Promise<McpSession>;
  /** Handles the abort of requests by the rules of the transport. */
  readonly aborts: AbortRules;
}

/** The meaning of an aborted request, which depends on transport and era. */
export interface AbortRules {
  /** Runs a request with the signal that ends it. */
  run(ctx: ServerContext, body: (signal: AbortSignal) => Promise<ToolsAnswer>): Promise<ToolsAnswer>;
  /** Returns true if the reason of the abort asks for the end of the call. */
  isCancel(reason: unknown): boolean;
}

/** Creates the server of one connection, or of one request over HTTP. It serves both eras. */
export function createMcpServer(scope: McpScope): Server {
  const { api, aborts, era, uncollected, url, version } = scope;
  const server = new Server(
    { name: "toolgate", title: "Toolgate", version },
    { capabilities: { tools: { listChanged: true }, resources: {} }, instructions },
  );
  const clientIn = (ctx: ServerContext) => clientOf(server, ctx, scope.client ?? unnamedClient);
  const sessionIn = (ctx: ServerContext) => scope.sessionOf(clientIn(ctx)).catch(toProtocolError);
  server.setRequestHandler("tools/list", async ({ params }, ctx) => {
    return await listMcpTools(api, await sessionIn(ctx), params?.cursor).catch(toProtocolError);
  });
  server.setRequestHandler("tools/call", async ({ params }, ctx) => {
    const session = await sessionIn(ctx);
    const client = clientIn(ctx);
    const showLink = linkShower(server, era, client);
    const answer = aborts.run(ctx, (signal) =>
      callMcpTool({
        ...{ api, client, era, session, uncollected, url, params, signal },
        requestState: ctx.mcpReq.requestState<string>(),
        isCancelled: () => aborts.isCancel(signal.reason),
        ...progressTo(ctx.mcpReq._meta?.progressToken, async (notification) => {
          if (!ctx.mcpReq.signal.aborted) await ctx.mcpReq.notify(notification);
        }),
        ...(showLink && { showLink }),
      }),
    );
    return await answer.catch(toProtocolError);
  });
  server.setRequestHandler("resources/list", () => ({ resources: [] }));
  server.setRequestHandler("resources/templates/list", () => ({ resourceTemplates: outputTemplates }));
  server.setRequestHandler("resources/read", async ({ params }, ctx) => {
    const { sessionId } = await sessionIn(ctx);
    return await readOutputResource(api, params.uri, sessionId).catch(toProtocolError);
  });
  return server;
}

/**
 * Returns a function that asks a legacy client to show a link while its call is held. Its answer decides nothing: an approver
 * answers in the console.
 */
function linkShower(server: Server, era: McpScope["era"], { opensLinks }: McpClient): ToolsCall["showLink"] {
  if (era !== "legacy" || !opensLinks) return undefined;
  return (message, url) => {
    const params = { mode: "url", message, url, elicitationId: randomUUID() } as const;
    server.elicitInput(params, { timeout: linkMs }).catch(() => undefined);
  };
}

/** Time for which a client may show a link. */
const linkMs = 3_600_000;

const instructions = [
  "These tools run in Toolgate, under a policy that people set.",
  `A call may wait for a person: its result then says that nothing has run yet, and names the tool ${waitToolName} and a call_id.`,
  `Call ${waitToolName} with that call_id to wait for the result. A refusal is final: do not try to reach the same effect in another way.`,
].join(" ");

/** Throws a failure in the form of the protocol. */
export function toProtocolError(error: unknown): never {
  if (error instanceof ProtocolError) throw error;
  const text = isUnreachable(error)
    ? "Toolgate is not running: start it with `npx toolgate serve`"
    : apiFailureText(error);
  throw new ProtocolError(ProtocolErrorCode.InternalError, text);
}

/** Streams on which an MCP client speaks. */
interface StdioStreams {
  readonly stdin: Readable;
  readonly stdout: Writable;
}

/** Serves one MCP client over stdio, in either era, until it closes its end. Nothing else may write to stdout. */
export async function serveMcpOverStdio(
  createServer: (era: "legacy" | "modern") => Server,
  { stdin, stdout }: StdioStreams,
): Promise<void> {
  const { promise: ended, resolve: end } = Promise.withResolvers<void>();
  stdin.once("end", end).once("close", end).once("error", end);
  stdout.once("error", end);
  const handle = serveStdio(({ era }) => createServer(era), { transport: new StdioServerTransport(stdin, stdout) });
  await ended;
  await handle.close();
}

/** Over stdio a cancelled request asks for the end of its call. The end of the connection does not: the calls go on. */
export const stdioAborts: AbortRules = {
  run: (ctx, body) => body(ctx.mcpReq.signal),
  isCancel: (reason) => !(reason instanceof SdkError && reason.code === SdkErrorCode.ConnectionClosed),
};
