import * as z from "zod";
import { createHttpClient } from "./http-client.ts";

/** Calls one tool of an MCP server; resolves to the text it returned. */
export type McpCall = (id: number, tool: string, args: Readonly<Record<string, unknown>>) => Promise<string>;

/** Opens a session over kept connections of HTTP/1.1, the protocol that MCP servers speak. */
export async function createMcpClient(url: string): Promise<McpCall> {
  const post = createPost(url);
  const version = "2025-06-18";
  const params = { protocolVersion: version, capabilities: {}, clientInfo: { name: "bench", version: "1.0.0" } };
  const welcome = await post({ id: 0, method: "initialize", params });
  const session = { "mcp-session-id": String(welcome.headers["mcp-session-id"]), "mcp-protocol-version": version };
  await post({ method: "notifications/initialized" }, session);

  return async (id, name, args) => {
    const { status, body } = await post({ id, method: "tools/call", params: { name, arguments: args } }, session);
    if (status !== 200) throw new Error(`tools/call answered ${status}: ${body}`);
    return result.parse(JSON.parse(body)).result.content[0].text;
  };
}

/** Calls a server in version 2026-07-28 of the protocol, which has no session, over kept connections of HTTP/1.1. */
export function createModernMcpClient(url: string, headers: Readonly<Record<string, string>> = {}): McpCall {
  const post = createPost(url);
  const version = "2026-07-28";
  const _meta = {
    "io.modelcontextprotocol/protocolVersion": version,
    "io.modelcontextprotocol/clientInfo": { name: "bench", version: "1.0.0" },
    "io.modelcontextprotocol/clientCapabilities": {},
  };
  return async (id, name, args) => {
    const more = { ...headers, "mcp-protocol-version": version, "mcp-method": "tools/call", "mcp-name": name };
    const message = { id, method: "tools/call", params: { name, arguments: args, _meta } };
    const { status, body } = await post(message, more);
    const [, json] = /^data: (.*)$/m.exec(body) ?? [];
    if (status !== 200 || json === undefined) throw new Error(`tools/call answered ${status}: ${body}`);
    return result.parse(JSON.parse(json)).result.content[0].text;
  };
}

function createPost(url: string) {
  const exchange = createHttpClient(url);
  const headers = { "content-type": "application/json", accept: "application/json, text/event-stream" };
  return (message: object, more: Readonly<Record<string, string>> = {}) =>
    exchange(url, { jsonrpc: "2.0", ...message }, { ...headers, ...more });
}

const result = z.object({ result: z.object({ content: z.tuple([z.object({ text: z.string() })]) }) });
