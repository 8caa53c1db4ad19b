/** The MCP SDK, version 2, over Streamable HTTP: a server for each request, a stream for each response, a tool that returns its text. */
import { createServer } from "node:http";
import { createMcpHandler, McpServer } from "@modelcontextprotocol/server";
import * as z from "zod";
import { jsonIn, sendWebResponse, webRequestOf } from "../../src/edge/mcp/web-exchange.ts";
import { announce } from "./announce.ts";

const inputSchema = z.object({ text: z.string() });
const handler = createMcpHandler(
  () => {
    const mcp = new McpServer({ name: "bench", version: "1.0.0" });
    const description = "Return the given text unchanged.";
    mcp.registerTool("echo", { description, inputSchema }, ({ text }) => ({ content: [{ type: "text", text }] }));
    return mcp;
  },
  { responseMode: "sse" },
);

const server = createServer(async (request, response) => {
  const chunks: Buffer[] = [];
  for await (const chunk of request) chunks.push(chunk);
  const web = webRequestOf(request, undefined, new AbortController().signal);
  await sendWebResponse(await handler.fetch(web, { parsedBody: jsonIn(Buffer.concat(chunks)) }), response);
});
server.keepAliveTimeout = 120_000; // Longer than the pause between two turns, so that connections stay open.
announce(server);
