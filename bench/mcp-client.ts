import { Agent, type IncomingHttpHeaders, request } from "node:http";
import * as z from "zod";

/** Calls one tool of an MCP server; resolves to the text it returned. */
export type McpCall = (id: number, tool: string, args: Readonly<Record<string, unknown>>) => Promise<string>;

/** Opens a session over kept connections of HTTP/1.1, the protocol that MCP servers speak. */
export async function createMcpClient(url: string): Promise<McpCall> {
  const agent = new Agent({ keepAlive: true });
  const headers = { "content-type": "application/json", accept: "application/json, text/event-stream" };

  const post = (message: object, more: Readonly<Record<string, string>> = {}) =>
    new Promise<{ status: number | undefined; headers: IncomingHttpHeaders; body: string }>((resolve, reject) => {
      const sent = request(url, { method: "POST", agent, headers: { ...headers, ...more } }, (response) => {
        const chunks: Buffer[] = [];
        response.on("data", (chunk: Buffer) => chunks.push(chunk));
        response.on("error", reject);
        response.on("end", () =>
          resolve({ status: response.statusCode, headers: response.headers, body: Buffer.concat(chunks).toString() }),
        );
      });
      sent.on("error", reject);
      sent.end(JSON.stringify({ jsonrpc: "2.0", ...message }));
    });

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

const result = z.object({ result: z.object({ content: z.tuple([z.object({ text: z.string() })]) }) });
