import { once } from "node:events";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import { type AddressInfo, createServer as createTcpServer } from "node:net";
import { gzipSync } from "node:zlib";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { expect, onTestFinished, test, vi } from "vitest";
import { SourceService, SourceState } from "../../../gen/opencode/tool/v1/source_service_pb.ts";
import { createKeptFetch } from "../../../src/sources/mcp/kept-fetch.ts";
import { connectMcp, type McpConnection } from "../../../src/sources/mcp/mcp-connection.ts";
import { clientOf } from "../../e2e/clients.ts";
import { createService } from "../../e2e/service.ts";

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

/** Answers each connection with these bytes, after the request has come, and leaves it open. */
async function serveBytes(...bytes: readonly (string | Buffer)[]) {
  const closed = Promise.withResolvers<void>();
  const server = createTcpServer((socket) => {
    socket.on("error", () => undefined).on("close", () => closed.resolve());
    socket.once("data", () => {
      for (const part of bytes) socket.write(part);
    });
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  onTestFinished(() => void server.close());
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/`, closed: closed.promise };
}

const head = (status: string, type: string, length = "") =>
  `HTTP/1.1 ${status}\r\nContent-Type: ${type}\r\n${length && `Content-Length: ${length}\r\n`}\r\n`;
const many = Buffer.alloc(17 * 1024 * 1024, "x");

test.each([
  ["an upgrade that nobody asked for", ["HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"]],
  ["an unknown status", [head("999 odd", "text/event-stream")]],
  ["no HTTP", ["hello\r\n\r\n"]],
  ["JSON whose type names events", [head("200 OK", 'application/json; x="text/event-stream"'), many]],
  ["an error of events without end", [head("500 Error", "text/event-stream"), many]],
])("%s rejects, and its connection is closed", async (_, bytes) => {
  const { url, closed } = await serveBytes(...bytes);
  await expect(createKeptFetch()(url)).rejects.toThrow();
  await closed;
});

test("an event without end ends the stream; many events go on", async () => {
  const event = Buffer.from(`data: ${"x".repeat(999_990)}\n\n`);
  const endless = await serveBytes(head("200 OK", "text/event-stream"), event, "data: x\n", many);
  const read = async (url: string) => {
    let size = 0;
    for await (const chunk of (await createKeptFetch()(url)).body ?? []) size += chunk.length;
    return size;
  };
  await expect(read(endless.url)).rejects.toThrow("one of its events has over 16 MiB");
  await endless.closed;
  const long = await serve((_, response) => {
    response.writeHead(200, { "content-type": "Text/Event-Stream" });
    for (let n = 0; n < 20; n += 1) for (const half of [event.subarray(0, -1), "\n"]) response.write(half);
    response.end();
  });
  const body = JSON.stringify({ id: 1, method: "tools/call" });
  const stream = (await createKeptFetch()(long.url, { method: "POST", body })).body ?? [];
  let size = 0;
  for await (const chunk of stream) size += chunk.length;
  expect(size).toBe(20 * event.length);
});

test("an answer is read with its mark of order, its plain encoding and no body, as the built-in fetch does", async () => {
  const text = "\uFEFF{}";
  const plain = await serve((_, response) =>
    response.writeHead(200, { "content-type": "application/json", "content-encoding": "identity" }).end(text),
  );
  const body = JSON.stringify({ id: 1, method: "tools/call" });
  expect(await (await createKeptFetch()(plain.url, { method: "POST", body })).json()).toEqual({});
  const none = await serve((_, response) => response.writeHead(204).end());
  expect(await (await createKeptFetch()(none.url, { method: "POST", body })).text()).toBe("");
});

test("errors of a server name no secret that was sent to it, and are short", async () => {
  const refusing = createServer((request, response) => {
    response.writeHead(400).end(`${request.headers.authorization} ${"x".repeat(3_000_000)}`);
  });
  refusing.listen(0, "127.0.0.1");
  await once(refusing, "listening");
  onTestFinished(() => void refusing.close());
  const service = createService({
    settings: `[mcp.remote]\nurl = "http://127.0.0.1:${(refusing.address() as AddressInfo).port}/mcp"\nheader_env = { Authorization = "KEY" }\n`,
    env: { KEY: "Bearer the-remote-key" },
  });
  onTestFinished(service.close);
  await service.start();
  const { listSources } = clientOf(SourceService, service.url, "approver-token-for-tests");
  const problem = async () => (await listSources({})).sources[0]?.problem ?? "";
  await vi.waitUntil(async () => (await problem()) !== "", { timeout: 30_000 });
  expect(await problem()).toContain("Error POSTing to endpoint: …");
  expect(await problem()).not.toContain("the-remote-key");
  expect((await problem()).length).toBeLessThan(1_000);
});

test("a change of the tools that a server announces while it is connected does not disturb that", async () => {
  const server = createServer(async (request, response) => {
    const { id, method } = JSON.parse(Buffer.concat(await request.toArray()).toString() || "{}");
    const reply = (result: object) => json(JSON.stringify({ jsonrpc: "2.0", id, result }), response);
    const capabilities = { tools: { listChanged: true } };
    if (method === "server/discover")
      return reply({ resultType: "complete", supportedVersions: ["2026-07-28"], capabilities, ...cached });
    if (method === "tools/list") return reply({ resultType: "complete", tools: [], ...cached });
    const changed = { jsonrpc: "2.0", method: "notifications/tools/list_changed" };
    response.writeHead(200, { "content-type": "text/event-stream" });
    response.write(`data: ${JSON.stringify(changed)}\n\n`);
    // Longer than the library waits for further changes; the stream ends without an acknowledgement.
    setTimeout(() => response.end(), 1_000);
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  onTestFinished(() => void server.close());
  const service = createService({
    settings: `[mcp.early]\nurl = "http://127.0.0.1:${(server.address() as AddressInfo).port}/mcp"\n`,
  });
  onTestFinished(service.close);
  await service.start();
  const { listSources } = clientOf(SourceService, service.url, "approver-token-for-tests");
  const state = async () => (await listSources({})).sources[0]?.state;
  await vi.waitUntil(async () => (await state()) === SourceState.READY, { timeout: 30_000 });
});
const cached = { ttlMs: 0, cacheScope: "private" };

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
