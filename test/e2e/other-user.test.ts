import { execFile } from "node:child_process";
import { connect as connectSocket } from "node:net";
import { text } from "node:stream/consumers";
import { promisify } from "node:util";
import { Code } from "@connectrpc/connect";
import { expect, test } from "vitest";
import { AgentService } from "../../gen/opencode/tool/v1/agent_service_pb.ts";
import { CredentialService } from "../../gen/opencode/tool/v1/credential_service_pb.ts";
import { PermissionReply } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { EnforcementState, ToolService } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { clientOf, connect, refusal } from "./clients.ts";
import { startService, unconfined, useService } from "./service.ts";

/** Users of the machine for these tests; they need no account. */
const [serviceUid, agentUid, personUid] = [61_001, 61_002, 61_003];
const service = useService({ settings: "require_other_user = true", uid: serviceUid });
const approver = "approver-token-for-tests";

/** Makes a call as this process, and returns its open request. */
async function ask(command = "touch marker") {
  const caller = connect(service, "caller");
  const call = { sessionId: await caller.newSession(), callId: "c1", tool: "bash", input: { command } };
  const { permissions, part } = await caller.tools.callTool({ ...call, waitMs: 2_000 });
  const [request] = permissions;
  if (request === undefined || part === undefined) throw new Error("it did not ask");
  return { ...call, caller, request, part };
}

/** Sends a unary request over HTTP/1.1 as another user of the machine. */
async function sendAs(uid: number, rpc: string, message: object, token: string, { url } = service as { url: string }) {
  const script = `const response = await fetch(process.argv[1], { method: "POST", body: process.argv[2],
    headers: { "content-type": "application/json", authorization: "Bearer " + process.argv[3] } });
    console.log(await response.text());`;
  const args = ["--input-type=module", "-e", script, `${url}/opencode.tool.v1.${rpc}`, JSON.stringify(message)];
  const { stdout } = await promisify(execFile)(process.execPath, [...args, token], { uid, gid: uid, cwd: "/" });
  return JSON.parse(stdout);
}

const answer = (permissionId: string, sessionId: string) => ({ permissionId, sessionId, reply: PermissionReply.ONCE });

test("the shell of an agent cannot answer its own request, even with the token of an approver", async () => {
  const { request, part, caller, ...call } = await ask();
  expect(part.callerUid).toBe(process.getuid?.());
  const own = connect(service, "approver").permissions.respondToPermission(answer(request.id, request.sessionId));
  expect(await refusal(own)).toMatchObject({
    code: Code.PermissionDenied,
    reason: "OWN_CALL",
    message: expect.stringContaining("this answer comes from the same user (require_other_user)"),
  });
  const rejected = await connect(service, "approver").permissions.rejectPermissions({ sessionId: call.sessionId });
  expect(rejected.settled).toEqual([]);

  const other = { ...answer(request.id, request.sessionId), reply: "PERMISSION_REPLY_ONCE" };
  expect(await sendAs(personUid, "PermissionService/RespondToPermission", other, approver)).toEqual({});
  const done = await caller.tools.callTool({ ...call, waitMs: 30_000 });
  expect(done.part?.state.case).toBe("completed");
});

test("nor can it answer the request of a hook", async () => {
  const created = await clientOf(CredentialService, service.url, approver).createToken({ roles: ["host"] });
  const { outcome } = await clientOf(ToolService, service.url, created.token).beginCall({
    ...{ kind: "claude", foreignSession: "s1", foreignTool: "Bash", foreignCallId: "toolu_1", cwd: service.workspace },
    ...{ input: { command: "touch delegated" }, waitMs: 2_000 },
  });
  const [request] = outcome.case === "waiting" ? outcome.value.permissions : [];
  if (request === undefined) throw new Error(`it did not ask: ${outcome.case}`);
  const own = connect(service, "deputy").permissions.respondToPermission(answer(request.id, request.sessionId));
  expect(await refusal(own)).toMatchObject({ reason: "OWN_CALL" });
});

test("a client that hides its user by closing its end of the connection cannot answer", async () => {
  const { request } = await ask("touch hidden");
  const body = JSON.stringify({ ...answer(request.id, request.sessionId), reply: "PERMISSION_REPLY_ONCE" });
  const { hostname, port } = new URL(service.url);
  const socket = connectSocket(Number(port), hostname);
  socket.end(
    `POST /opencode.tool.v1.PermissionService/RespondToPermission HTTP/1.1\r\nhost: ${hostname}\r\nconnection: close\r\n` +
      `content-type: application/json\r\nauthorization: Bearer ${approver}\r\ncontent-length: ${body.length}\r\n\r\n${body}`,
  );
  await text(socket);
  const open = await connect(service, "watcher").permissions.getPermission({ permissionId: request.id });
  expect(open.settled).toBeUndefined();
  const other = { ...answer(request.id, request.sessionId), reply: "PERMISSION_REPLY_ONCE" };
  expect(await sendAs(personUid, "PermissionService/RespondToPermission", other, "deputy-token-for-tests")).toEqual({});
});

test("approvals are advisory for the service's user and root, and for others until one of them can approve", async () => {
  const enforcementOf = async (uid: number, token = "caller-token-for-tests") =>
    (await sendAs(uid, "ToolService/GetServerInfo", {}, token)).enforcement;
  expect(await enforcementOf(agentUid)).toEqual({ state: "ENFORCEMENT_STATE_ENFORCED" });
  expect(await enforcementOf(serviceUid)).toMatchObject({
    state: "ENFORCEMENT_STATE_ADVISORY",
    reason: expect.stringContaining(`agent and service run as the same user (${serviceUid})`),
  });
  const { enforcement } = await clientOf(ToolService, service.url, approver).getServerInfo({});
  expect(enforcement).toMatchObject({
    state: EnforcementState.ADVISORY,
    reason: expect.stringContaining("the agent runs as root"),
  });

  const agents = clientOf(AgentService, service.url, approver);
  const connector = { place: "ann@here", uid: agentUid };
  const register = async (enforced: boolean, systemLevel: boolean, kind = "claude", mcpName = "") => {
    const registered = await agents.registerConnector({ ...connector, kind, enforced, systemLevel, mcpName });
    return registered.connector?.enforcement;
  };
  const stateOf = async (...fields: Parameters<typeof register>) => (await register(...fields))?.state;
  expect(await stateOf(false, true)).toBe(EnforcementState.ADVISORY);
  expect(await stateOf(true, false)).toBe(EnforcementState.ADVISORY);
  expect(await stateOf(true, true)).toBe(EnforcementState.ENFORCED);
  // The user can put another program in place of our MCP server.
  expect(await stateOf(true, true, "claude", "tg_1")).toBe(EnforcementState.ADVISORY);
  // No other connection of Codex changes that.
  expect(await register(true, true, "codex", "tg_1")).toMatchObject({
    state: EnforcementState.ADVISORY,
    reason: expect.stringMatching(/^Codex runs a tool whose hook is killed, .*over MCP, with its own tools off$/),
  });
  // A project switches off the hooks of Gemini CLI by their name, wherever they stand.
  expect(await stateOf(true, true, "gemini")).toBe(EnforcementState.ADVISORY);
  // opencode has no such level.
  expect(await stateOf(true, true, "opencode")).toBe(EnforcementState.ADVISORY);
  const { code } = await clientOf(CredentialService, service.url, approver).createCode({});
  const { credential } = await sendAs(agentUid, "CredentialService/SignIn", { code, label: "ann" }, approver);
  expect(await enforcementOf(agentUid)).toMatchObject({
    state: "ENFORCEMENT_STATE_ADVISORY",
    reason: expect.stringContaining(`"${credential.id}" can approve and was in the hands of user ${agentUid}`),
  });
  expect(await stateOf(true, true)).toBe(EnforcementState.ADVISORY);
});

test("approvals are advisory where an agent's commands run without the filter of system calls", async () => {
  const open = await startService({
    settings: unconfined.replace("[sandbox]", "[sandbox.agent.plan]"),
    uid: serviceUid,
  });
  expect(
    (await sendAs(agentUid, "ToolService/GetServerInfo", {}, "caller-token-for-tests", open)).enforcement,
  ).toMatchObject({
    state: "ENFORCEMENT_STATE_ADVISORY",
    reason: expect.stringContaining("a command can leave a program that runs as the user of the service"),
  });
});

test("a token that can approve counts from its first use by the agent's user", async () => {
  const before = await sendAs(61_004, "ToolService/GetServerInfo", {}, "caller-token-for-tests");
  expect(before.enforcement).toEqual({ state: "ENFORCEMENT_STATE_ENFORCED" });
  const after = await sendAs(61_004, "ToolService/GetServerInfo", {}, approver);
  expect(after.enforcement).toMatchObject({ reason: expect.stringContaining('"approver" can approve') });
});
