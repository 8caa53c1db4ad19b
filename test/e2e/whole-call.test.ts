import { randomUUID } from "node:crypto";
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import type { JsonObject } from "@bufbuild/protobuf";
import { expect, test } from "vitest";
import { GrantScope, PermissionOutcome } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { PermissionReply as Reply, ToolErrorReason } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { connect, refusal } from "./clients.ts";
import { read } from "./reading.ts";
import { startService, useService } from "./service.ts";

const service = useService();
const agent = () => connect(service, "caller");
const person = () => connect(service, "approver");

/** A call with two asks: for a folder outside the workspace, and for the command. */
async function openCall(sessionId: string, input: JsonObject) {
  const stream = read(agent().tools.executeTool({ sessionId, callId: randomUUID(), tool: "bash", input }));
  const asks = [await stream.until("permissionAsked"), await stream.until("permissionAsked")] as const;
  return { stream, asks };
}

test("one answer may approve a whole call", async () => {
  const sessionId = await agent().newSession();
  const { stream, asks } = await openCall(sessionId, { command: "pwd", workdir: "/tmp" });
  const [folder, command] = asks;
  await person().permissions.respondToPermission({
    sessionId,
    permissionId: command.id,
    reply: Reply.ONCE,
    wholeCall: true,
    expectedDigest: command.digest,
  });
  expect([await stream.until("permissionSettled"), await stream.until("permissionSettled")]).toMatchObject([
    { permissionId: command.id, outcome: PermissionOutcome.ONCE, settledWith: "" },
    { permissionId: folder.id, outcome: PermissionOutcome.ONCE, settledWith: command.id, by: "approver" },
  ]);
  expect((await stream.end()).state.value).toMatchObject({ output: "/tmp\n" });
  expect((await person().permissions.listGrants({ sessionId })).grants).toEqual([]);
});

test("an answer to a whole call leaves open what the call asked for after the approver looked", async () => {
  const urls = ["http://127.0.0.2:9/", "http://127.0.0.3:9/"];
  const hosts = urls.map((url) => `"${url}*" = "ask"\n`).join("");
  const own = await startService({ settings: `[permission]\nbash = "allow"\n[permission.webfetch]\n${hosts}` });
  const command = `${urls.map((url) => `curl -sS ${url} & `).join("")} wait`;
  await writeFile(join(own.workspace, "reach.sh"), command);
  const [caller, { permissions }] = [connect(own, "caller"), connect(own, "approver")];
  const sessionId = await caller.newSession();
  const call = { sessionId, callId: "c1", tool: "bash", input: { command: "sh reach.sh" } };
  const stream = read(caller.tools.executeTool(call));
  const [looked, since] = [await stream.until("permissionAsked"), await stream.until("permissionAsked")];
  const { id: permissionId, digest: expectedDigest } = looked;
  const answer = { sessionId, reply: Reply.ONCE, wholeCall: true };
  await permissions.respondToPermission({ ...answer, permissionId, expectedDigest });
  const open = (await permissions.listPermissions({ sessionId })).permissions;
  expect(open.map(({ id }) => id)).toEqual([since.id]);
  await permissions.respondToPermission({ ...answer, permissionId: since.id, expectedDigest: since.digest });
  expect((await stream.end()).state.case).toBe("completed");
});

test("always for a whole call saves each ask's own first offer, and approves once what has none", async () => {
  const sessionId = await agent().newSession();
  const { stream, asks } = await openCall(sessionId, { command: "echo \u202ea", workdir: "/tmp" });
  const [folder, command] = asks;
  expect([folder.offers.length > 0, command.offers]).toEqual([true, []]);
  await person().permissions.respondToPermission({
    sessionId,
    permissionId: command.id,
    reply: Reply.ALWAYS,
    wholeCall: true,
  });
  expect((await stream.end()).state.case).toBe("completed");
  const { grants } = await person().permissions.listGrants({ sessionId });
  expect(grants).toMatchObject([
    { permission: "external_directory", permissionId: folder.id, scope: GrantScope.SESSION, grantedBy: "approver" },
  ]);
});

test("always for a whole call that has nothing to save is refused, and the call goes on waiting", async () => {
  const sessionId = await agent().newSession();
  const input = { command: "echo \u202ea" };
  const stream = read(agent().tools.executeTool({ sessionId, callId: "c1", tool: "bash", input }));
  const { id: permissionId } = await stream.until("permissionAsked");
  const answer = { sessionId, permissionId, wholeCall: true };
  expect(await refusal(person().permissions.respondToPermission({ ...answer, reply: Reply.ALWAYS }))).toMatchObject({
    reason: "NO_OFFER",
  });
  await person().permissions.respondToPermission({ ...answer, reply: Reply.ONCE });
  expect((await stream.end()).state.case).toBe("completed");
});

test("a grant ends when its approver said, and cannot be given beyond", async () => {
  const sessionId = await agent().newSession();
  const { stream, asks } = await openCall(sessionId, { command: "pwd", workdir: "/tmp" });
  const [, { id: permissionId }] = asks;
  const expires = Date.now() + 3_600_000;
  const always = { sessionId, permissionId, reply: Reply.ALWAYS, wholeCall: true };
  expect(await refusal(person().permissions.respondToPermission({ ...always, expires: 1 }))).toMatchObject({
    reason: "INVALID_MESSAGE",
    metadata: { field: "expires" },
  });
  await person().permissions.respondToPermission({ ...always, expires });
  await stream.end();
  const { grants } = await person().permissions.listGrants({ sessionId });
  expect(grants).toMatchObject([{ expires }, { expires }]);
  expect(grants[0]?.text).toContain(`at most until ${new Date(expires).toISOString()}`);
});

test("everything open in a session and its descendants is rejected with a message, and nothing outside", async () => {
  const top = await agent().newSession();
  const parent = await agent().newSession({ parentSessionId: top });
  const child = await agent().newSession({ parentSessionId: parent });
  const input = { command: "pwd", workdir: "/tmp" };
  const kept = await openCall(top, input);
  const ended = [await openCall(parent, input), await openCall(child, input), await openCall(child, input)];
  const { settled } = await person().permissions.rejectPermissions({ sessionId: parent, message: "Stop, all of you." });
  expect(settled.map(({ permissionId }) => permissionId)).toEqual(ended.map(({ asks }) => asks[0].id));
  for (const { stream } of ended) {
    expect((await stream.end()).state.value).toMatchObject({
      reason: ToolErrorReason.REJECTED,
      error: expect.stringContaining("Stop, all of you."),
    });
  }
  const { permissions } = await person().permissions.listPermissions({ sessionId: top });
  expect(permissions.map(({ id }) => id)).toEqual(kept.asks.map(({ id }) => id));
  expect((await person().permissions.rejectPermissions({ sessionId: parent })).settled).toEqual([]);
});

test("everything that one agent asks is rejected, in all sessions or in one", async () => {
  const input = { command: "pwd", workdir: "/tmp" };
  const [here, there] = [await agent().newSession({ agent: "plan" }), await agent().newSession({ agent: "plan" })];
  const [first, second] = [await openCall(here, input), await openCall(there, input)];
  const other = await openCall(await agent().newSession(), input);
  const { permissions } = person();
  const reject = { agent: "plan", message: "Stop planning." };
  expect((await permissions.rejectPermissions({ ...reject, sessionId: here })).settled).toMatchObject([
    { permissionId: first.asks[0].id },
  ]);
  expect((await permissions.rejectPermissions(reject)).settled).toMatchObject([{ permissionId: second.asks[0].id }]);
  expect((await second.stream.end()).state.value).toMatchObject({ error: expect.stringContaining("Stop planning.") });
  const open = (await permissions.listPermissions({})).permissions.map(({ id }) => id);
  expect(open).toContain(other.asks[0].id);
});

test("rejecting everything leaves the approver's own requests open", async () => {
  const admin = connect(service, "admin");
  const sessionId = await admin.newSession();
  const stream = read(admin.tools.executeTool({ sessionId, callId: "own", tool: "bash", input: { command: "pwd" } }));
  const { id } = await stream.until("permissionAsked");
  expect((await admin.permissions.rejectPermissions({ sessionId })).settled).toEqual([]);
  expect((await person().permissions.rejectPermissions({ sessionId })).settled).toMatchObject([{ permissionId: id }]);
});
