import { mkdir, symlink } from "node:fs/promises";
import { join } from "node:path";
import type { JsonObject } from "@bufbuild/protobuf";
import { Code } from "@connectrpc/connect";
import { expect, test } from "vitest";
import { PermissionAction, PermissionOutcome } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { PermissionReply, ToolErrorReason } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { connect, refusal } from "./clients.ts";
import { read } from "./reading.ts";
import { useService } from "./service.ts";

const service = useService();
const rule = (permission: string, pattern: string, action: PermissionAction) => ({ permission, pattern, action });

test("a session that is created again is the same one; with other fields it is refused", async () => {
  const agent = connect(service, "caller");
  const sessionId = "ses_of_the_host";
  const first = await agent.sessions.createSession({ sessionId, title: "Mine" });
  const again = await agent.sessions.createSession({ sessionId, title: "Still mine" });
  expect(again).toEqual(first);
  const differs = { code: Code.AlreadyExists, reason: "SESSION_DIFFERS" };
  const parentSessionId = await agent.newSession();
  expect(await refusal(agent.sessions.createSession({ sessionId, parentSessionId }))).toMatchObject({
    ...differs,
    metadata: { field: "parent_session_id" },
  });
  const stranger = connect(service, "stranger");
  expect(await refusal(stranger.sessions.createSession({ sessionId }))).toMatchObject({
    ...differs,
    metadata: { field: "owner" },
  });
});

test("the workspace of a session is a directory inside its root, after every link", async () => {
  const agent = connect(service, "caller");
  const beside = join(service.workspace, "../workspace-2");
  for (const directory of [beside, join(service.workspace, "web/src")]) await mkdir(directory, { recursive: true });
  await symlink(beside, join(service.workspace, "out"));
  await symlink("/", join(service.workspace, "web/root"));
  await symlink("web", join(service.workspace, "inside"));
  for (const path of ["..", "../..", "../data", "../workspace-2", "web/../..", "out", "web/root", "web/root/etc"]) {
    const workspace = `default/${path}`;
    const { reason, message } = await refusal(agent.sessions.createSession({ workspace }));
    expect([reason, message]).toEqual([
      "UNKNOWN_WORKSPACE",
      `workspace "${workspace}": the directory is not inside its root`,
    ]);
  }
  for (const path of ["web", "web/src", "inside/src", "web/.."]) {
    const { session } = await agent.sessions.createSession({ workspace: `default/${path}` });
    expect(session?.workspace).toBe(`default/${path}`);
  }
});

test("closing cancels what is open, here and in children, and refuses new calls", async () => {
  const agent = connect(service, "caller");
  const sessionId = await agent.newSession();
  const child = await agent.newSession({ parentSessionId: sessionId });
  const input = { command: "echo started; sleep 600" };
  const running = read(agent.tools.executeTool({ sessionId, callId: "c1", agent: "free", tool: "bash", input }));
  const waiting = read(agent.tools.executeTool({ sessionId: child, callId: "c2", tool: "bash", input }));
  await Promise.all([running.until("output"), waiting.until("permissionAsked")]);
  expect((await agent.sessions.closeSession({ sessionId })).session?.closed).toBeGreaterThan(0);
  await agent.sessions.closeSession({ sessionId });
  for (const stream of [running, waiting]) {
    expect((await stream.end()).state.value).toMatchObject({ reason: ToolErrorReason.CANCELLED });
  }
  expect((await agent.permissions.listPermissions({ sessionId })).permissions).toEqual([]);
  for (const closed of [sessionId, child]) {
    const call = { sessionId: closed, callId: "late", tool: "echo", input: { text: "late" } };
    expect(await refusal(agent.tools.callTool(call))).toMatchObject({
      code: Code.FailedPrecondition,
      reason: "SESSION_CLOSED",
      metadata: { session_id: closed },
    });
  }
});

test("a closed session still returns the calls that ended", async () => {
  const agent = connect(service, "caller");
  const sessionId = await agent.newSession();
  const call = { sessionId, callId: "c1", tool: "echo", input: { text: "kept" } };
  const first = await agent.tools.callTool(call);
  await agent.sessions.closeSession({ sessionId });
  expect((await agent.tools.callTool(call)).part).toEqual(first.part);
});

test("rules of a session narrow what its calls may do, and do not widen it", async () => {
  const agent = connect(service, "caller");
  const rules = [rule("bash", "*", PermissionAction.ALLOW), rule("read", "secret*", PermissionAction.DENY)];
  const sessionId = await agent.newSession({ rules });
  const asked = read(agent.tools.executeTool({ sessionId, callId: "c1", tool: "bash", input: { command: "true" } }));
  await asked.until("permissionAsked");
  const denied = await agent.tools.callTool({
    sessionId,
    callId: "c2",
    tool: "read",
    input: { filePath: "secret.txt" },
  });
  expect(denied.part?.state.value).toMatchObject({ reason: ToolErrorReason.DENIED });
});

test("a child inherits what its parent is denied, and not what its parent is asked", async () => {
  const agent = connect(service, "caller");
  const rules = [rule("read", "secret*", PermissionAction.DENY), rule("read", "diary*", PermissionAction.ASK)];
  const parentSessionId = await agent.newSession({ rules });
  const sessionId = await agent.newSession({ parentSessionId });
  const reading = async (filePath: string) => {
    const { part } = await agent.tools.callTool({ sessionId, callId: filePath, tool: "read", input: { filePath } });
    return part?.state.case === "error" ? part.state.value.reason : undefined;
  };
  expect(await reading("secret.txt")).toBe(ToolErrorReason.DENIED);
  expect(await reading("diary.txt")).toBe(ToolErrorReason.FAILED);
});

test("an ask of a child is in the log of its root, and is answered under the child's id", async () => {
  const [agent, person] = [connect(service, "caller"), connect(service, "approver")];
  const root = await agent.newSession();
  const sessionId = await agent.newSession({ parentSessionId: root });
  const log = read(person.tools.watchSession({ sessionId: root }));
  const stream = read(agent.tools.executeTool({ sessionId, callId: "c1", tool: "bash", input: { command: "true" } }));
  const ask = await log.until("permissionAsked");
  expect(ask).toMatchObject({ sessionId, ancestry: [root, sessionId] });
  await person.permissions.respondToPermission({ sessionId, permissionId: ask.id, reply: PermissionReply.ONCE });
  expect(await log.until("permissionSettled")).toMatchObject({ sessionId, outcome: PermissionOutcome.ONCE });
  expect((await stream.end()).state.case).toBe("completed");
});

test("a session of another principal is not found by any rpc", async () => {
  const [agent, stranger] = [connect(service, "caller"), connect(service, "stranger")];
  const sessionId = await agent.newSession();
  await agent.tools.callTool({ sessionId, callId: "c1", tool: "echo", input: { text: "mine" } });
  const attempts: Record<string, (sessionId: string) => PromiseLike<unknown>> = {
    get: (sessionId) => stranger.sessions.getSession({ sessionId }),
    close: (sessionId) => stranger.sessions.closeSession({ sessionId }),
    child: (parentSessionId) => stranger.sessions.createSession({ parentSessionId }),
    call: (sessionId) => stranger.tools.callTool({ sessionId, callId: "c1", tool: "echo", input: { text: "mine" } }),
    execute: (sessionId) => read(stranger.tools.executeTool({ sessionId, callId: "c1", tool: "echo" })).end(),
    cancel: (sessionId) => stranger.tools.cancelTool({ sessionId, callId: "c1" }),
    part: (sessionId) => stranger.tools.getToolPart({ sessionId, callId: "c1" }),
    parts: (sessionId) => stranger.tools.listToolParts({ sessionId }),
    output: (sessionId) => stranger.tools.readToolOutput({ sessionId, output: "out_1" }),
    plan: (sessionId) => stranger.tools.planTool({ sessionId, tool: "echo", input: { text: "" } }),
    watch: (sessionId) => read(stranger.tools.watchSession({ sessionId })).end(),
    asks: (sessionId) => stranger.permissions.listPermissions({ sessionId }),
    explain: (sessionId) => stranger.permissions.explainPermission({ sessionId, permission: "read" }),
  };
  for (const [name, attempt] of Object.entries(attempts)) {
    const [foreign, unknown] = [await refusal(attempt(sessionId)), await refusal(attempt("ses_none"))];
    expect([name, foreign.code, foreign.reason]).toEqual([name, Code.NotFound, "NO_SUCH_SESSION"]);
    expect(foreign.message.replaceAll(sessionId, "ses_none")).toBe(unknown.message);
  }
  expect((await stranger.sessions.listSessions({})).sessions.map(({ id }) => id)).not.toContain(sessionId);
});

test("a watcher reads every session and changes none", async () => {
  const [agent, watcher] = [connect(service, "caller"), connect(service, "watcher")];
  const sessionId = await agent.newSession();
  await agent.tools.callTool({ sessionId, callId: "c1", tool: "echo", input: { text: "seen" } });
  expect((await watcher.tools.listToolParts({ sessionId })).parts.map(({ callId }) => callId)).toEqual(["c1"]);
  const refused = [
    watcher.tools.cancelTool({ sessionId, callId: "c1" }),
    watcher.sessions.closeSession({ sessionId }),
    watcher.tools.planTool({ sessionId, tool: "echo", input: {} }),
    watcher.permissions.revokeGrant({ grantId: "grt_1" }),
  ];
  for (const attempt of refused) expect(await refusal(attempt)).toMatchObject({ reason: "ROLE_MISSING" });
});

test("metadata with too many keys or levels is refused before anything else looks at it", async () => {
  const { tools, sessions } = connect(service, "caller");
  const wide = Object.fromEntries(Array.from({ length: 10_001 }, (_, i) => [`k${i}`, 0]));
  let deep: JsonObject = {};
  for (let level = 0; level < 101; level++) deep = { a: deep };
  for (const [metadata, why] of [
    [wide, "metadata has more than 10000 keys"],
    [deep, "recursion depth of 100"],
  ] as const) {
    const refused = { reason: "INVALID_MESSAGE", message: expect.stringContaining(why) };
    expect(await refusal(tools.callTool({ tool: "echo", input: { text: "x" }, metadata }))).toMatchObject(refused);
    expect(await refusal(sessions.createSession({ metadata }))).toMatchObject(refused);
  }
});

test("rules of a request have a size, and a chain of sessions a number of lists", async () => {
  const agent = connect(service, "caller");
  const rules = [rule("bash", "x *", PermissionAction.DENY)];
  const large = Array.from({ length: 100 }, (_, i) => rule("bash", `${"x".repeat(3_000)}${i}`, PermissionAction.DENY));
  for (const request of [
    agent.sessions.createSession({ rules: large }),
    agent.permissions.explainPermission({ permission: "bash", patterns: ["x"], rules: large }),
    agent.tools.planTool({ tool: "echo", input: { text: "x" }, rules: large }),
  ])
    expect(await refusal(request)).toMatchObject({
      reason: "INVALID_MESSAGE",
      message: expect.stringContaining("over the limit of 262144"),
    });
  const many = Array.from({ length: 1_001 }, () => rule("bash", "x", PermissionAction.DENY));
  expect(await refusal(agent.sessions.createSession({ rules: many }))).toMatchObject({ reason: "INVALID_MESSAGE" });
  await agent.newSession({ rules: many.slice(1) });
  let parentSessionId = "";
  for (let i = 0; i < 32; i++) parentSessionId = await agent.newSession({ parentSessionId, rules });
  expect(await refusal(agent.sessions.createSession({ parentSessionId, rules }))).toMatchObject({
    reason: "INVALID_MESSAGE",
    message: expect.stringContaining("over the limit of 32"),
  });
  await agent.newSession({ parentSessionId });
});

test("a session is below at most 64 others", async () => {
  const agent = connect(service, "caller");
  let parentSessionId = await agent.newSession();
  for (let i = 0; i < 64; i++) parentSessionId = await agent.newSession({ parentSessionId });
  expect(await refusal(agent.sessions.createSession({ parentSessionId }))).toMatchObject({
    reason: "INVALID_MESSAGE",
    message: "the session would be below 65 others, over the limit of 64; create it higher up",
  });
});
