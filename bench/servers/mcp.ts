/** The MCP SDK over Streamable HTTP: one session, plain JSON answers, a tool that returns its text. */
import { randomUUID } from "node:crypto";
import { createServer } from "node:http";
import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js";
import { StreamableHTTPServerTransport } from "@modelcontextprotocol/sdk/server/streamableHttp.js";
import * as z from "zod";
import { announce } from "./announce.ts";

const mcp = new McpServer({ name: "bench", version: "1.0.0" });
mcp.registerTool(
  "echo",
  { description: "Return the given text unchanged.", inputSchema: { text: z.string() } },
  ({ text }) => ({ content: [{ type: "text", text }] }),
);
const transport = new StreamableHTTPServerTransport({ sessionIdGenerator: randomUUID, enableJsonResponse: true });
await mcp.connect(transport);

const server = createServer((request, response) => transport.handleRequest(request, response));
server.keepAliveTimeout = 120_000; // Longer than the pause between two turns, so that connections stay open.
announce(server);
