import { once } from "node:events";
import { connect as connectHttp2 } from "node:http2";
import { afterAll, beforeAll, describe, expect, onTestFinished, test, vi } from "vitest";
import { PermissionReply } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { connect } from "./clients.ts";
import { createService, startService } from "./service.ts";

/** `both` makes calls and approves; `bound` may act in one of the two workspaces only. */
const settings = `origins = ["https://app.example"]
[rest]
enabled = true
[workspace]
lib = "/usr/lib"
[[token]]
id = "both"
roles = ["caller", "approver"]
value = "both-token-for-tests"
[[token]]
id = "bound"
roles = ["caller"]
workspaces = ["default"]
value = "bound-token-for-tests"
`;
const service = createService({ settings });
beforeAll(service.start);
afterAll(service.close);

const json = { "content-type": "application/json" };

async function send(
  path: string,
  {
    who = "caller",
    method = "GET",
    body,
    headers = {},
  }: {
    who?: string;
    method?: string;
    body?: string;
    headers?: Record<string, string>;
  } = {},
) {
  const authorization = `Bearer ${who}-token-for-tests`;
  const response = await fetch(`${service.url}${path}`, {
    method,
    headers: { authorization, ...headers },
    ...(body !== undefined && { body }),
  });
  return { status: response.status, body: JSON.parse(await response.text()) };
}

const post = (path: string, body: object, who: string) =>
  send(path, { method: "POST", body: JSON.stringify(body), headers: json, who });

/** Starts a call that asks; returns its session and its permission request. */
async function asking(who = "caller") {
  const { tools, newSession } = connect(service, who as "caller");
  const sessionId = await newSession();
  const call = { sessionId, callId: "call_asked" };
  await tools.callTool({ ...call, tool: "bash", input: { command: "touch asked" }, waitMs: 0 });
  const id = await vi.waitFor(async () => {
    const [request] = (await tools.getToolPart(call)).permissions;
    if (request === undefined) throw new Error("the call does not ask yet");
    return request.id;
  }, 30_000);
  return { sessionId, id };
}

const invalid = (field: string) => ({
  status: 400,
  body: { _tag: "InvalidRequestError", message: expect.any(String), field },
});
const forbidden = (message: string) => ({
  status: 403,
  body: { name: "Forbidden", data: { message: expect.stringContaining(message) } },
});

describe("a request is refused that", () => {
  test.each([
    ["has no JSON", { body: "{}", headers: { "content-type": "text/plain" } }, "content-type"],
    [
      "is a form",
      { body: "title=x", headers: { "content-type": "application/x-www-form-urlencoded" } },
      "content-type",
    ],
    ["has broken JSON", { body: "{", headers: json }, ""],
    ["has a title that is no text", { body: '{"title":1}', headers: json }, "title"],
  ])("%s", async (_name, given, field) => {
    const { status, body } = await send("/session", { method: "POST", ...given });
    expect({ status, field: body.field ?? "", tag: body._tag }).toEqual({
      status: 400,
      field,
      tag: "InvalidRequestError",
    });
  });

  test.each(["POST", "GET", "DELETE"])("%ss from a page of another origin", async (method) => {
    const answer = await send("/session/ses_none", { method, headers: { origin: "https://evil.example" } });
    expect(answer).toEqual(forbidden("https://evil.example"));
  });

  test.each(["token", "auth_token", "password"])(
    "has the parameter %s in its address, even with a valid header",
    async (name) => {
      expect(await send(`/session?${name}=caller-token-for-tests`)).toEqual(invalid(name));
    },
  );

  test.each(["/etc", "relative", "/", "%00"])(
    "names the directory %s, which is no workspace of its token",
    async (directory) => {
      for (const path of ["/session", "/path", "/event"])
        expect((await send(`${path}?directory=${directory}`)).status).toBe(400);
      const headers = { "x-opencode-directory": encodeURIComponent(directory), ...json };
      expect((await send("/session", { method: "POST", body: "{}", headers })).status).toBe(400);
    },
  );

  test("names the directory of a workspace that its token may not use", async () => {
    expect((await send("/path?directory=/usr/lib/x")).body).toMatchObject({ directory: "/usr/lib" });
    const { status, body } = await send("/path?directory=/usr/lib/x", { who: "bound" });
    expect({ status, body }).toMatchObject({ status: 400, body: { message: expect.stringContaining("/usr/lib/x") } });
  });

  test("has no token, an unknown one, or half of a basic one", async () => {
    const unauthorized = { status: 401, body: { _tag: "UnauthorizedError", message: expect.any(String) } };
    for (const authorization of ["", "Bearer nothing", "Basic !!", `Basic ${btoa("caller-token-for-tests")}x`])
      expect(await send("/session", { headers: { authorization } })).toEqual(unauthorized);
  });

  test("needs a model", async () => {
    const { sessionId } = await asking();
    for (const name of ["message", "prompt_async", "command", "summarize"]) {
      const answer = await post(`/session/${sessionId}/${name}`, { parts: [] }, "caller");
      expect(answer).toEqual({
        status: 400,
        body: { name: "BadRequest", data: { message: expect.stringContaining("runs no models") } },
      });
    }
  });

  test("names a session of another principal", async () => {
    const { sessionId } = await asking();
    for (const [path, method] of [
      ["", "GET"],
      ["", "DELETE"],
      ["/message", "GET"],
      ["/abort", "POST"],
    ] as const)
      expect(await send(`/session/${sessionId}${path}`, { who: "stranger", method })).toMatchObject({
        status: 404,
        body: { name: "NotFoundError" },
      });
  });
});

describe("an answer is refused", () => {
  test("of an agent's token", async () => {
    const { sessionId, id } = await asking();
    expect(await post(`/permission/${id}/reply`, { reply: "once" }, "caller")).toEqual(forbidden("role approver"));
    expect(await post(`/session/${sessionId}/permissions/${id}`, { response: "once" }, "caller")).toEqual(
      forbidden("role approver"),
    );
  });

  test("to a call of the same person", async () => {
    const { id } = await asking("both");
    expect(await post(`/permission/${id}/reply`, { reply: "once" }, "both")).toEqual(forbidden("both"));
  });

  test("to an unknown request, one of another session, or one that has an answer", async () => {
    const gone = (requestID: string, message: unknown) => ({
      status: 404,
      body: { _tag: "PermissionNotFoundError", requestID, message },
    });
    expect(await post("/permission/per_none/reply", { reply: "once" }, "approver")).toEqual(
      gone("per_none", "Permission request not found: per_none"),
    );
    const [one, other] = [await asking(), await asking()];
    const crossed = `/session/${one.sessionId}/permissions/${other.id}`;
    expect(await post(crossed, { response: "once" }, "approver")).toMatchObject({ status: 404 });
    expect(await post(`/permission/${one.id}/reply`, { reply: "reject", message: "not now" }, "approver")).toEqual({
      status: 200,
      body: true,
    });
    expect(await post(`/permission/${one.id}/reply`, { reply: "once" }, "deputy")).toEqual(
      gone(one.id, expect.stringContaining("approver")),
    );
    expect(await post("/question/per_none/reply", { answers: [] }, "approver")).toMatchObject({
      status: 404,
      body: { _tag: "QuestionNotFoundError" },
    });
  });
});

test("a page of a configured origin may read and write", async () => {
  const answer = await send("/session", {
    method: "POST",
    body: "{}",
    headers: { origin: "https://app.example", ...json },
  });
  expect(answer).toMatchObject({ status: 200, body: { projectID: "default" } });
  const asked = { origin: "https://app.example", "access-control-request-method": "PATCH" };
  const { headers } = await fetch(`${service.url}/session/ses_1`, { method: "OPTIONS", headers: asked });
  expect(headers.get("access-control-allow-methods")).toContain("PATCH");
  expect(headers.get("access-control-allow-headers")).toContain("x-opencode-directory");
});

test("abort ends the calls of a session, and an archived session is listed no more", async () => {
  const { sessionId } = await asking();
  expect((await send("/session/status")).body[sessionId]).toEqual({ type: "busy" });
  expect(await send(`/session/${sessionId}/abort`, { method: "POST" })).toEqual({ status: 200, body: true });
  expect((await send("/session/status")).body[sessionId]).toBeUndefined();
  const { parts } = await connect(service, "caller").tools.listToolParts({ sessionId });
  expect(parts.map(({ state }) => state.case)).toEqual(["error"]);
  const patch = (body: object) =>
    send(`/session/${sessionId}`, { method: "PATCH", body: JSON.stringify(body), headers: json });
  expect(await patch({ title: "new" })).toEqual(invalid("title"));
  expect(await patch({ time: { archived: 1 } })).toMatchObject({
    status: 200,
    body: { time: { archived: expect.any(Number) } },
  });
  expect((await send("/session")).body.map(({ id }: { id: string }) => id)).not.toContain(sessionId);
});

/** Reads a stream until a text arrives; returns what was read. The service's writes are added to `pieces`. */
async function readEvents(
  path: string,
  until: string,
  {
    who = "approver",
    headers = {},
    pieces = [],
  }: { who?: string; headers?: Record<string, string>; pieces?: string[] } = {},
) {
  const left = new AbortController();
  const authorization = `Bearer ${who}-token-for-tests`;
  const response = await fetch(`${service.url}${path}`, {
    headers: { authorization, ...headers },
    signal: left.signal,
  });
  for await (const chunk of response.body ?? []) {
    pieces.push(Buffer.from(chunk).toString());
    if (pieces.join("").includes(until)) break;
  }
  left.abort();
  return pieces.join("");
}

const idsOf = (text: string) => [...text.matchAll(/^id: (.*)$/gm)].map(([, id = ""]) => id);

test("streams of one connection whose token is a basic password are not limited as those without a token", async () => {
  const connection = connectHttp2(service.url);
  onTestFinished(() => connection.destroy());
  const authorization = `Basic ${btoa("opencode:approver-token-for-tests")}`;
  const statuses = Array.from({ length: 20 }, async () => {
    const [headers] = await once(connection.request({ ":path": "/event", authorization }), "response");
    return headers[":status"];
  });
  expect(new Set(await Promise.all(statuses))).toEqual(new Set([200]));
});

test("a stream goes on after the last event that a client has, with what happened meanwhile", async () => {
  const [id = ""] = idsOf(await readEvents("/event", "id: "));
  const one = await asking();
  const first = await readEvents("/event", one.id, { headers: { "last-event-id": id } });
  expect(first).toContain("permission.asked");
  const other = await asking();
  const after = await readEvents("/event", other.id, { headers: { "last-event-id": idsOf(first).at(-1) ?? "" } });
  expect(after.indexOf(`evt_${one.sessionId}_1_`)).toBe(-1);
});

test("events that follow each other at once reach a client together", async () => {
  const { tools, newSession } = connect(service, "caller");
  const sessionId = await newSession();
  const pieces: string[] = [];
  const seen = readEvents("/event", "the last call", { pieces });
  await vi.waitFor(() => expect(pieces).not.toEqual([]));
  const began = performance.now();
  for (let i = 0; i < 60; i += 1)
    await tools.callTool({
      sessionId,
      callId: `call_${i}`,
      tool: "echo",
      input: { text: i < 59 ? `call ${i}` : "the last call" },
    });
  const types = [...(await seen).matchAll(/"type":"message\.part\.updated"/g)];
  expect(types.length).toBeGreaterThan(60);
  // A write in 10 ms at most, and some more, since a piece may arrive in two.
  expect(pieces.length).toBeLessThan(3 + (performance.now() - began) / 8);
});

test("a caller's stream has its own sessions only, and every stream that of its directory", async () => {
  const { id, sessionId } = await asking();
  await connect(service, "approver").permissions.respondToPermission({
    sessionId,
    permissionId: id,
    reply: PermissionReply.REJECT,
  });
  const seen = readEvents("/event", "per_", { who: "stranger" });
  const foreign = await asking();
  const own = await asking("stranger");
  const text = await seen;
  expect(text).toContain(own.sessionId);
  expect(text).not.toContain(foreign.sessionId);
});

test("a client with an id of another store gets the event after which it reads everything again", async () => {
  const text = await readEvents("/event", "disposed", { headers: { "last-event-id": "sto_other~1" } });
  expect(text).toContain('"type":"server.instance.disposed"');
});

test("the global stream names the directory of each event", async () => {
  const seen = readEvents("/global/event", "permission.asked");
  await asking();
  const [data = ""] = (await seen).split("\n").filter((line) => line.includes("permission.asked"));
  expect(JSON.parse(data.slice("data: ".length))).toMatchObject({
    directory: service.workspace,
    project: "default",
    payload: { type: "permission.asked" },
  });
});

test("a closed door names the setting that opens it", async () => {
  const closed = await startService();
  for (const path of ["/session", "/session/ses_1/permissions/per_1", "/event"]) {
    const response = await fetch(`${closed.url}${path}`);
    expect([response.status, await response.text()]).toEqual([
      404,
      expect.stringContaining("enabled = true under [rest]"),
    ]);
  }
});

const newSession = async (fields: object) => (await post("/session", fields, "both")).body.id as string;

test("a session that is deleted again and again is announced as deleted once", async () => {
  const pieces: string[] = [];
  const reading = readEvents("/event", "created last", { pieces });
  await vi.waitFor(() => expect(pieces.join("")).toContain("server.connected"));
  const id = await newSession({});
  for (let count = 0; count < 3; count += 1) await send(`/session/${id}`, { method: "DELETE", who: "both" });
  await newSession({ title: "created last" });
  expect((await reading).match(/"session.deleted"/g)).toHaveLength(1);
});

test("a client that stops reading misses the older ones of many announcements", async () => {
  const connection = connectHttp2(service.url);
  onTestFinished(() => connection.destroy());
  const stream = connection.request({ ":path": "/event", authorization: "Bearer approver-token-for-tests" });
  await once(stream, "response");
  const metadata = { text: "x".repeat(50_000) };
  const ids: string[] = [];
  for (let count = 0; count < 150; count += 1) ids.push(await newSession({ metadata }));
  let text = "";
  for await (const chunk of stream.setEncoding("utf8")) {
    text += chunk;
    if (text.slice(-100_000).includes(ids.at(-1) ?? "")) break;
  }
  expect(ids.filter((id) => text.includes(id)).length).toBeLessThan(120);
});
