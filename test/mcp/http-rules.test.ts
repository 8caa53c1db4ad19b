import { once } from "node:events";
import { readFile, writeFile } from "node:fs/promises";
import { type ClientRequest, request as httpRequest, type IncomingMessage } from "node:http";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { PermissionReply } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { connect } from "../e2e/clients.ts";
import { unconfined, useService } from "../e2e/service.ts";

const service = useService({ settings: `origins = ["https://agents.example"]\nmcp_hold_ms = 60000\n${unconfined}` });
const approver = () => connect(service, "approver").permissions;

const version = "2026-07-28";
const meta = {
  "io.modelcontextprotocol/protocolVersion": version,
  "io.modelcontextprotocol/clientInfo": { name: "raw", version: "1" },
  "io.modelcontextprotocol/clientCapabilities": {},
};
const json = { "content-type": "application/json", accept: "application/json, text/event-stream" };
const caller = { ...json, authorization: "Bearer caller-token-for-tests" };

/** Headers of a modern request. */
const modern = (method: string, name?: string) => ({
  ...caller,
  "mcp-protocol-version": version,
  "mcp-method": method,
  ...(name !== undefined && { "mcp-name": name }),
});

const list = { jsonrpc: "2.0", id: 1, method: "tools/list", params: { _meta: meta } };
const legacyList = { jsonrpc: "2.0", id: 1, method: "tools/list", params: {} };

async function post(headers: Record<string, string>, body: unknown, path = "/mcp") {
  const response = await fetch(new URL(path, service.url), { method: "POST", headers, body: JSON.stringify(body) });
  return { status: response.status, headers: response.headers, text: await response.text() };
}

/** Opens a request whose response is read or cut by the test. */
async function open(headers: Record<string, string>, body: unknown): Promise<[ClientRequest, IncomingMessage]> {
  const request = httpRequest(new URL("/mcp", service.url), { method: "POST", headers });
  request.on("error", () => undefined).end(JSON.stringify(body));
  const [response] = await once(request, "response");
  return [request, response];
}

const bash = (command: string) => ({ name: "bash", arguments: { command, description: "say" } });

async function requestsFor(command: string): Promise<string[]> {
  const { permissions } = await approver().listPermissions({});
  return permissions.filter(({ patterns }) => patterns.includes(command)).map(({ id }) => id);
}

/** Reads a response until its progress names an open permission request. */
async function untilAsked(response: IncomingMessage): Promise<string> {
  const { promise, resolve } = Promise.withResolvers<string>();
  let text = "";
  response.setEncoding("utf8").on("data", (chunk: string) => {
    text += chunk;
    if (text.includes("waiting for approval")) resolve(text);
  });
  return await promise;
}

async function asked(command: string): Promise<boolean> {
  const { permissions } = await approver().listPermissions({});
  return permissions.some(({ patterns }) => patterns.includes(command));
}

test("a request without a token is refused with a challenge", async () => {
  const { status, headers, text } = await post({ ...json, "mcp-protocol-version": version }, list);
  expect([status, headers.get("www-authenticate")]).toEqual([401, "Bearer"]);
  expect(JSON.parse(text).error.message).toContain("a token is needed");
});

test("a token that cannot call is refused", async () => {
  const { status, text } = await post(
    { ...modern("tools/list"), authorization: "Bearer approver-token-for-tests" },
    list,
  );
  expect(status).toBe(403);
  expect(JSON.parse(text).error.message).toContain("caller");
});

test.each([
  ["https://evil.example", 403],
  ["null", 403],
  ["https://agents.example", 200],
])("a page of %s gets %i", async (origin, status) => {
  expect((await post({ ...modern("tools/list"), origin }, list)).status).toBe(status);
});

test("a page of the service's own origin may call", async () => {
  expect((await post({ ...modern("tools/list"), origin: service.url }, list)).status).toBe(200);
});

test("another Host is refused", async () => {
  const request = httpRequest(new URL("/mcp", service.url), {
    method: "POST",
    headers: { ...caller, host: "evil.example" },
  });
  request.end(JSON.stringify(list));
  const [response] = await once(request, "response");
  expect(response.statusCode).toBe(403);
  response.resume();
});

test.each([
  ["the version", { ...modern("tools/list"), "mcp-protocol-version": "2025-11-25" }],
  ["the method", modern("tools/call")],
])("a header that differs from the body in %s is refused", async (_fact, headers) => {
  const { status, text } = await post(headers, list);
  expect(status).toBe(400);
  expect(JSON.parse(text).error.code).toBe(-32_020);
});

test("the header of the name is decoded before it is compared", async () => {
  const params = { _meta: meta, name: "zähler", arguments: {} };
  const call = { jsonrpc: "2.0", id: 1, method: "tools/call", params };
  const encoded = (name: string) => `=?base64?${Buffer.from(name).toString("base64")}?=`;
  expect((await post(modern("tools/call", encoded("zähler")), call)).text).toContain("There is no tool");
  expect((await post(modern("tools/call", encoded("other")), call)).status).toBe(400);
});

describe("a plain call is answered as the library answers it", () => {
  /** The library serves a request whose content type has a parameter. */
  const byLibrary = { "content-type": "application/json; charset=utf-8" };
  const answersOf = async (name: string, call: object, headers: Record<string, string>) => {
    const { status, headers: sent, text } = await post({ ...modern("tools/call", name), ...headers }, call);
    const hidden = text.replace(/call_[0-9a-f]{32}/g, "call");
    const events = hidden.split("\n\n").filter((event) => event !== "" && !event.startsWith(":"));
    return {
      status,
      type: sent.get("content-type"),
      events: events.map((event) => JSON.parse(event.replace("event: message\ndata: ", ""))),
    };
  };

  test.each([
    ["a result", "skill", { name: "none" }, {}],
    ["text of a file", "read", { filePath: "notes.txt" }, {}],
    ["a list", "list", {}, {}],
    ["an unknown tool", "paint", {}, {}],
    ["input that the tool refuses", "read", { filePath: 7 }, {}],
    ["no input", "read", undefined, {}],
    ["a missing id of a call", "toolgate_wait", {}, {}],
    ["an unknown id of a call", "toolgate_wait", { call_id: "ses_1/call_1" }, {}],
    ["progress", "read", { filePath: "notes.txt" }, { progressToken: 7 }],
    ["another definition", "read", { filePath: "notes.txt" }, { "toolgate/definitionId": "other" }],
  ])("%s", async (_fact, name, input, more) => {
    await writeFile(join(service.workspace, "notes.txt"), "one\ntwo\n");
    const params = { name, ...(input && { arguments: input }), _meta: { ...meta, ...more } };
    const call = { jsonrpc: "2.0", id: "a", method: "tools/call", params };
    const plain = await answersOf(name, call, {});
    expect(plain).toEqual(await answersOf(name, call, byLibrary));
  });
});

test("a plain call that waits shows progress, and its stream ends with the result once it is approved", async () => {
  const params = { ...bash("echo plain"), _meta: { ...meta, progressToken: "p" } };
  const call = { jsonrpc: "2.0", id: 5, method: "tools/call", params };
  const [, response] = await open(modern("tools/call", "bash"), call);
  await untilAsked(response);
  const [id = ""] = await requestsFor("echo plain");
  const ended = once(response, "end");
  let rest = "";
  response.on("data", (chunk: string) => {
    rest += chunk;
  });
  const { sessionId = "" } = (await approver().listPermissions({})).permissions.find((each) => each.id === id) ?? {};
  await approver().respondToPermission({ sessionId, permissionId: id, reply: PermissionReply.ONCE });
  await ended;
  expect(rest).toContain('"id":5');
  expect(rest).toContain("plain");
});

test("an unsupported version names the supported one", async () => {
  const future = { ...meta, "io.modelcontextprotocol/protocolVersion": "2099-01-01" };
  const { status, text } = await post(
    { ...modern("tools/list"), "mcp-protocol-version": "2099-01-01" },
    {
      ...list,
      params: { _meta: future },
    },
  );
  expect(status).toBe(400);
  expect(JSON.parse(text).error).toMatchObject({ code: -32_022, data: { supported: [version] } });
});

test("an unknown method is 404, another content type 415, a GET 405, a notification 202", async () => {
  const unknown = { ...list, method: "tools/paint" };
  expect((await post(modern("tools/paint"), unknown)).status).toBe(404);
  expect((await post({ ...caller, "content-type": "text/plain" }, list)).status).toBe(415);
  expect((await fetch(new URL("/mcp", service.url), { headers: caller })).status).toBe(405);
  expect((await post(caller, { jsonrpc: "2.0", method: "notifications/initialized" })).status).toBe(202);
});

test.each([
  ["no JSON", "{", 400],
  ["nothing", "", 400],
  ["a number", "7", 400],
])("a body that is %s is refused", async (_fact, body, status) => {
  const response = await fetch(new URL("/mcp", service.url), { method: "POST", headers: caller, body });
  expect(response.status).toBe(status);
  await response.text();
});

test("a body over the limit is refused", async () => {
  const { status } = await post(modern("tools/list"), { ...list, padding: "x".repeat(4_194_304) });
  expect(status).toBe(429);
});

test("the list is private, is cached for a while, and no proxy buffers it", async () => {
  const { headers, text } = await post(modern("tools/list"), list);
  expect(headers.get("x-accel-buffering")).toBe("no");
  expect(headers.get("cache-control")).toBe("no-store");
  const { result } = JSON.parse(/^data: (.*)$/m.exec(text)?.[1] ?? "{}");
  expect(result).toMatchObject({ resultType: "complete", ttlMs: 5_000, cacheScope: "private" });
});

test("a cursor of another server is refused", async () => {
  const params = { _meta: meta, cursor: "??" };
  const { text } = await post(modern("tools/list"), { ...list, params });
  expect(text).toContain("the cursor is not one of this server");
});

test("headers and progress of a waiting call arrive at once; closing the modern response cancels it", async () => {
  const params = { _meta: { ...meta, progressToken: 1 }, ...bash("echo closed-modern") };
  const [request, response] = await open(modern("tools/call", "bash"), {
    jsonrpc: "2.0",
    id: 1,
    method: "tools/call",
    params,
  });
  expect(response.statusCode).toBe(200);
  expect(await untilAsked(response)).toContain("waiting for approval: bash: echo closed-modern");
  expect(await asked("echo closed-modern")).toBe(true);
  request.destroy();
  await expect.poll(() => asked("echo closed-modern")).toBe(false);
});

test("closing the response of a legacy client leaves its call, and the same call continues it", async () => {
  const params = { ...bash("echo closed-legacy"), _meta: { progressToken: 1 } };
  const call = { jsonrpc: "2.0", id: 1, method: "tools/call", params };
  const [request, response] = await open(caller, call);
  await untilAsked(response);
  const before = await requestsFor("echo closed-legacy");
  response.on("error", () => undefined);
  request.destroy();
  await once(request, "close");
  // The service has noticed the closed connection when it has answered on others.
  for (let round = 0; round < 3; round += 1) await post(caller, legacyList);
  const [again, second] = await open(caller, call);
  await untilAsked(second);
  expect(await requestsFor("echo closed-legacy")).toEqual(before);
  expect(before).toHaveLength(1);
  again.destroy();
});

test("two identical calls whose responses are open are two calls", async () => {
  const call = {
    jsonrpc: "2.0",
    id: 1,
    method: "tools/call",
    params: { ...bash("echo twice"), _meta: { progressToken: 1 } },
  };
  const opened = await Promise.all([open(caller, call), open(caller, call)]);
  await Promise.all(opened.map(([, response]) => untilAsked(response)));
  const { permissions } = await approver().listPermissions({});
  expect(permissions.filter(({ patterns }) => patterns.includes("echo twice"))).toHaveLength(2);
  for (const [request] of opened) request.destroy();
});

test("the use of a tool by Claude Code is one call, however often it is sent", async () => {
  const params = { ...bash("echo used"), _meta: { progressToken: 1, "claudecode/toolUseId": "toolu_7" } };
  const call = { jsonrpc: "2.0", id: 1, method: "tools/call", params };
  const opened = await Promise.all([open(caller, call), open(caller, call)]);
  await Promise.all(opened.map(([, response]) => untilAsked(response)));
  const { permissions } = await approver().listPermissions({});
  const own = permissions.filter(({ patterns }) => patterns.includes("echo used"));
  expect(own.map(({ tool }) => tool?.callId)).toEqual(["toolu_7"]);
  for (const [request] of opened) request.destroy();
});

test("a session is the one in the address, of one's own only", async () => {
  await post(caller, legacyList, "/mcp/ses_pinned");
  const { sessions } = connect(service, "caller");
  expect((await sessions.getSession({ sessionId: "ses_pinned" })).session?.owner).toBe("caller");
  const stranger = { ...caller, authorization: "Bearer stranger-token-for-tests" };
  expect((await post(stranger, legacyList, "/mcp/ses_pinned")).text).toContain("SESSION_DIFFERS");
  expect((await post({ ...caller, "toolgate-session": "pinned" }, legacyList)).status).toBe(400);
});

test("a legacy session is given at the start, names the client, and survives a restart", async () => {
  const initialize = {
    ...{ jsonrpc: "2.0", id: 1, method: "initialize" },
    params: { protocolVersion: "2024-11-05", capabilities: {}, clientInfo: { name: "Old Client", version: "3" } },
  };
  const { headers, text } = await post(caller, initialize);
  expect(text).toContain('"protocolVersion":"2024-11-05"');
  const session = {
    ...caller,
    "mcp-session-id": headers.get("mcp-session-id") ?? "",
    "mcp-protocol-version": "2024-11-05",
  };
  const echo = {
    jsonrpc: "2.0",
    id: 2,
    method: "tools/call",
    params: { name: "read", arguments: { filePath: "none" } },
  };
  const sessionIn = (text: string) => /"toolgate\/sessionId":"([^"]+)"/.exec(text)?.[1] ?? "";
  const before = sessionIn((await post(session, echo)).text);
  const { session: made } = await connect(service, "caller").sessions.getSession({ sessionId: before });
  expect(made).toMatchObject({ title: "Old Client", requester: { kind: "old-client" } });
  await service.stop();
  await service.start();
  expect(sessionIn((await post(session, echo)).text)).toBe(before);
});

test("a client whose session an operator closes gets another one after the refusal", async () => {
  const clientInfo = { name: "closed", version: "1" };
  const params = { name: "skill", arguments: { name: "none" } };
  const _meta = { ...meta, "io.modelcontextprotocol/clientInfo": clientInfo };
  const call = { jsonrpc: "2.0", id: 1, method: "tools/call", params: { ...params, _meta } };
  const answer = async () => (await post(modern("tools/call", "skill"), call)).text;
  const sessionIn = (text: string) => /"toolgate\/sessionId":"([^"]+)"/.exec(text)?.[1] ?? "";
  const before = sessionIn(await answer());
  await connect(service, "admin").sessions.closeSession({ sessionId: before });
  expect(await answer()).toContain("SESSION_CLOSED");
  const after = sessionIn(await answer());
  expect(after).toMatch(/^ses_/);
  expect(after).not.toBe(before);
});

test("a legacy notification cancels the call of a request in the same session only", async () => {
  const session = { ...caller, "mcp-session-id": "session-of-one" };
  const params = { ...bash("echo notified"), _meta: { progressToken: 1 } };
  const [, response] = await open(session, { jsonrpc: "2.0", id: "r1", method: "tools/call", params });
  await untilAsked(response);
  const cancel = { jsonrpc: "2.0", method: "notifications/cancelled", params: { requestId: "r1" } };
  await post({ ...session, "mcp-session-id": "another" }, cancel);
  expect(await asked("echo notified")).toBe(true);
  await post(session, cancel);
  await expect.poll(() => asked("echo notified")).toBe(false);
  response.destroy();
});

test("the metrics count requests by era and method, and calls that are held", async () => {
  const params = { ...bash("echo measured"), _meta: { progressToken: 1 } };
  const [request, response] = await open(caller, { jsonrpc: "2.0", id: 1, method: "tools/call", params });
  await untilAsked(response);
  await post(modern("tools/paint"), { ...list, method: "tools/paint" });
  const headers = { authorization: "Bearer watcher-token-for-tests" };
  const text = await (await fetch(new URL("/metrics", service.url), { headers })).text();
  expect(text).toMatch(/^toolgate_mcp_requests_total\{era="legacy",method="tools\/call"\} [1-9]\d*$/m);
  expect(text).toMatch(/^toolgate_mcp_requests_total\{era="modern",method="\(other\)"\} [1-9]\d*$/m);
  expect(text).toMatch(/^toolgate_mcp_held_calls [1-9]\d*$/m);
  response.on("error", () => undefined);
  request.destroy();
});

test("clients that leave while their calls wait are no errors in the log", async () => {
  const params = { ...bash("echo left"), _meta: { progressToken: 1 } };
  const [request, response] = await open(caller, { jsonrpc: "2.0", id: 1, method: "tools/call", params });
  await untilAsked(response);
  response.on("error", () => undefined);
  request.destroy();
  await once(request, "close");
  // The service has noticed the closed connection when it has answered on others.
  for (let round = 0; round < 3; round += 1) await post(caller, legacyList);
  const log = await readFile(join(service.data, "log", "toolgate.log"), "utf8");
  expect(log.split("\n").filter((line) => line.includes('"level":"error"'))).toEqual([]);
});
