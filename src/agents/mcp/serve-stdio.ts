import type { Readable, Writable } from "node:stream";
import { SdkError, SdkErrorCode, type Server } from "@modelcontextprotocol/server";
import { StdioServerTransport, serveStdio } from "@modelcontextprotocol/server/stdio";
import type { AbortRules } from "./mcp-server.ts";

/** Streams on which an MCP client speaks. */
export interface StdioStreams {
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
