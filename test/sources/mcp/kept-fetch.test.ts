import { once } from "node:events";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { gzipSync } from "node:zlib";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { expect, onTestFinished, test } from "vitest";
import { createKeptFetch } from "../../../src/sources/mcp/kept-fetch.ts";
import { connectMcp, type McpConnection } from "../../../src/sources/mcp/mcp-connection.ts";

type Handler = (result: string, response: ServerResponse, request: IncomingMessage) => void;

/** Serves MCP with one tool; `answer` gets the result of a call, each other request is answered in JSON. */
async function serve(answer: Handler) {
  const requests: IncomingMessage[] = [];
  const sockets = new Set<unknown>();
  const server = createServer(async (request, response) => {
    requests.push(request);
    sockets.add(request.socket);
    const chunks = await request.toArray();
    if (request.method !== "POST") return response.writeHead(405).end();
    const { id, method } = JSON.parse(Buffer.concat(chunks).toString());
    if (id === undefined) return response.writeHead(202).end();
    const reply = (result: object) => JSON.stringify({ jsonrpc: "2.0", id, result });
    if (method === "tools/call") return answer(reply({ content: [{ type: "text", text: "done" }] }), response, request);
    const known = {
      initialize: {
        protocolVersion: "2025-06-18",
        capabilities: { tools: {} },
        serverInfo: { name: "s", version: "1" },
      },
      "tools/list": { tools: [{ name: "tool", inputSchema: { type: "object" } }] },
    }[method as string];
    const unknown = JSON.stringify({ jsonrpc: "2.0", id, error: { code: -32601, message: "unknown method" } });
    json(known ? reply(known) : unknown, response);
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  onTestFinished(() => {
    server.closeAllConnections();
    server.close();
  });
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/mcp`, requests, sockets };
}

const json = (text: string, response: ServerResponse) =>
  void response.writeHead(200, { "content-type": "application/json; charset=utf-8" }).end(text);

async function connect(url: string): Promise<McpConnection> {
  const requestInit = { headers: { authorization: "Bearer of-this-server" } };
  const transport = new StreamableHTTPClientTransport(new URL(url), { requestInit, fetch: createKeptFetch() });
  const connection = await connectMcp({ transport }, { changed() {}, closed() {}, refused() {} });
  onTestFinished(() => connection.close());
  return connection;
}

const listener = { progress() {}, question: async () => ({ action: "cancel" as const }) };
const call = (connection: McpConnection, signal = new AbortController().signal) =>
  connection.call({ name: "tool", arguments: {} }, listener, signal);
const done = { content: [{ type: "text", text: "done" }] };

test("calls one after the other share a connection, and ask for no compression", async () => {
  const { url, requests, sockets } = await serve(json);
  const connection = await connect(url);
  await call(connection);
  const before = sockets.size;
  for (let n = 0; n < 10; n++) expect(await call(connection)).toMatchObject(done);
  expect(sockets.size).toBe(before);
  expect(requests.at(-1)?.headers).toMatchObject({
    ...{ authorization: "Bearer of-this-server", "accept-encoding": "identity" },
    "content-type": "application/json",
  });
});

test("an answer in events is read", async () => {
  const { url } = await serve((result, response) => {
    response.writeHead(200, { "content-type": "text/event-stream" });
    response.end(`event: message\ndata: ${result}\n\n`);
  });
  expect(await call(await connect(url))).toMatchObject(done);
});

test("a redirect is followed at the server alone, so that no other server gets its headers", async () => {
  const other = await serve(json);
  const kept = await serve((result, response, { url }) =>
    url === "/mcp" ? void response.writeHead(307, { location: "/moved" }).end() : json(result, response),
  );
  expect(await call(await connect(kept.url))).toMatchObject(done);
  const left = await serve((_, response) => void response.writeHead(307, { location: other.url }).end());
  await expect(call(await connect(left.url))).rejects.toThrow(/Redirect to http.*not followed/);
  expect(other.requests).toEqual([]);
});

test("a compressed answer, and one over 16 MiB, fail the call with the reason", async () => {
  const compressed = await serve((result, response) => {
    response.writeHead(200, { "content-type": "application/json", "content-encoding": "gzip" }).end(gzipSync(result));
  });
  await expect(call(await connect(compressed.url))).rejects.toThrow("it compresses its answer (gzip)");
  const long = await serve((result, response) => json(result.padEnd(16 * 1024 * 1024 + 1), response));
  await expect(call(await connect(long.url))).rejects.toThrow("its answer has over 16 MiB");
});

test.each(["before the answer", "within it"])("an aborted request ends at the server %s", async (when) => {
  const [ended, began] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
  const { url } = await serve((_, response) => {
    response.on("close", ended.resolve);
    if (when === "within it") response.writeHead(200, { "content-type": "application/json" }).write("{");
    began.resolve();
  });
  const abort = new AbortController();
  const body = JSON.stringify({ id: 1, method: "tools/call" });
  const request = createKeptFetch()(url, { method: "POST", body, signal: abort.signal });
  await began.promise;
  abort.abort();
  await expect(request).rejects.toThrow(/abort/);
  await ended.promise;
});
