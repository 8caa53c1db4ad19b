import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { Code } from "@connectrpc/connect";
import { expect, onTestFinished, test } from "vitest";
import {
  DecisionKind,
  PermissionAction,
  PermissionLayer,
  PermissionOutcome,
} from "../../gen/opencode/tool/v1/permission_pb.ts";
import { PermissionReply as Reply } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { toolgate } from "../cli/toolgate.ts";
import { connect, refusal } from "./clients.ts";
import { read } from "./reading.ts";
import { useService } from "./service.ts";

const service = useService({
  settings: '[permission]\nbash = { "*" = "ask", "echo allowed" = "allow", "echo denied" = "deny" }\n',
});
const { ALLOWED, ASKED, DENIED, REVOKED, SETTLED } = DecisionKind;

/** A session in which everything was decided once: by rules, by people, by a grant. */
async function decide() {
  const agent = connect(service, "caller");
  const person = connect(service, "approver");
  const sessionId = await agent.newSession();
  const run = (callId: string, command: string) =>
    agent.tools.callTool({ sessionId, callId, tool: "bash", input: { command } });
  await run("allowed", "echo allowed");
  await run("denied", "echo denied");
  const stream = read(
    agent.tools.executeTool({ sessionId, callId: "asked", tool: "bash", input: { command: "echo first" } }),
  );
  const { id } = await stream.until("permissionAsked");
  await person.permissions.respondToPermission({
    sessionId,
    permissionId: id,
    reply: Reply.ONCE,
    input: { command: "echo second" },
  });
  const again = await stream.until("permissionAsked");
  await person.permissions.respondToPermission({ sessionId, permissionId: again.id, reply: Reply.ALWAYS });
  const { grantId } = await stream.until("permissionSettled");
  await stream.end();
  await run("granted", "echo second");
  await person.permissions.revokeGrant({ grantId });
  return { agent, person, sessionId, ask: id, again, grantId };
}

test("every decision is one record: who, what, and which rule, reply or grant", async () => {
  const { agent, sessionId, ask, again, grantId } = await decide();
  const { entries } = await agent.permissions.listDecisions({ sessionId });
  const records = entries.map(({ record }) => record);
  const call = (callId: string) => ({ sessionId, callId, tool: "bash", agent: "build", principal: "caller" });
  expect(records).toMatchObject([
    {
      ...call("allowed"),
      kind: ALLOWED,
      by: "",
      decisions: [
        {
          pattern: "echo allowed",
          action: PermissionAction.ALLOW,
          layer: PermissionLayer.CONFIG,
          rule: { permission: "bash", pattern: "echo allowed", action: PermissionAction.ALLOW },
        },
      ],
    },
    { ...call("denied"), kind: DENIED, decisions: [{ pattern: "echo denied", action: PermissionAction.DENY }] },
    { ...call("asked"), kind: ASKED, permissionIds: [ask], decisions: [{ pattern: "echo first" }] },
    {
      ...call("asked"),
      kind: SETTLED,
      by: "approver",
      permissionIds: [ask],
      settled: { outcome: PermissionOutcome.EDITED, message: 'command: was "echo first", now "echo second"' },
    },
    { ...call("asked"), kind: ASKED, permissionIds: [again.id], digest: again.digest },
    {
      ...call("asked"),
      kind: SETTLED,
      by: "approver",
      settled: { outcome: PermissionOutcome.ALWAYS, grantId },
      grants: [{ id: grantId, match: { match: { value: "echo second" } } }],
    },
    // By the answer itself, or, if that took the service over 50 ms, by the grant that it saved.
    { ...call("asked"), kind: ALLOWED },
    { ...call("granted"), kind: ALLOWED, decisions: [{ layer: PermissionLayer.GRANT, grantId }] },
    { kind: REVOKED, sessionId, callId: "", by: "approver", grants: [{ id: grantId }] },
  ]);
  const pages = await agent.permissions.listDecisions({ sessionId, pageSize: 2, afterSeq: 1n });
  expect(pages.entries.map(({ seq }) => seq)).toEqual([2n, 3n]);
});

test("callers read what concerns their own sessions, watchers and approvers everything", async () => {
  const { sessionId } = await decide();
  for (const who of ["caller", "approver", "watcher", "admin"] as const) {
    const { entries } = await connect(service, who).permissions.listDecisions({ sessionId });
    expect(entries.length, who).toBeGreaterThan(0);
  }
  const foreign = connect(service, "stranger").permissions.listDecisions({ sessionId });
  expect(await refusal(foreign)).toMatchObject({ code: Code.NotFound, reason: "NO_SUCH_SESSION" });
  const none = connect(service, "approver").permissions.listDecisions({ sessionId: "ses_none" });
  expect(await refusal(none)).toMatchObject({ reason: "NO_SUCH_SESSION" });
});

test("the audit is exported as JSON lines, and verified there and at the server; what was changed is named", async () => {
  const { sessionId } = await decide();
  const folder = await mkdtemp(join(tmpdir(), "toolgate-audit-"));
  onTestFinished(() => rm(folder, { recursive: true }));
  const environment = { TOOLGATE_URL: service.url, TOOLGATE_TOKEN: "approver-token-for-tests" };
  const exported = await toolgate(["audit", "export"], environment);
  expect(exported.code).toBe(0);
  const lines = exported.stdout.trim().split("\n");
  const own = lines.filter((line) => line.includes(sessionId));
  expect(own).toHaveLength(9);

  const file = join(folder, "audit.jsonl");
  await writeFile(file, exported.stdout);
  const offline = await toolgate(["audit", "verify", file], {});
  expect(offline).toMatchObject({ code: 0, stderr: expect.stringContaining(`${lines.length} records`) });
  const [online, here] = [
    await toolgate(["audit", "verify", "--session", sessionId], environment),
    JSON.parse(own[8] ?? ""),
  ];
  expect(online.stdout).toBe(`${sessionId}  9  ${here.hash}\n`);
  // As of an export that failed.
  const none = join(folder, "none.jsonl");
  await writeFile(none, "");
  expect(await toolgate(["audit", "verify", file, none], {})).toMatchObject({
    code: 2,
    stderr: expect.stringContaining(`${none} has no records`),
  });

  const tampered = async (change: (lines: string[]) => string[]) => {
    await writeFile(file, change(own).join("\n"));
    return await toolgate(["audit", "verify", file], {});
  };
  const swap = (line: string, from: string, to: string) => line.replace(from, to);
  const renamed = await tampered((all) =>
    all.map((line, i) => (i === 3 ? swap(line, '"by":"approver"', '"by":"nobody"') : line)),
  );
  expect(renamed).toMatchObject({ code: 1, stderr: expect.stringContaining(`record 4 of ${sessionId}`) });
  expect(renamed.stderr).toContain("its readable form does not match its content");
  const removed = await tampered((all) => all.filter((_, i) => i !== 4));
  expect(removed).toMatchObject({ code: 1, stderr: expect.stringContaining("record 6") });
});

test("what was decided outlives the session: an export has it, and who may read all can list and read it", async () => {
  const { sessionId } = await decide();
  await service.stop();
  // As the sweep does after 30 days.
  const db = new DatabaseSync(join(service.data, "toolgate.sqlite"));
  db.prepare("DELETE FROM sessions WHERE id = ?").run(sessionId);
  db.close();
  await service.start();
  const { permissions, sessions } = connect(service, "approver");
  expect((await sessions.listSessions({})).sessions.map(({ id }) => id)).not.toContain(sessionId);
  expect((await permissions.listAudits({})).rootSessionIds).toEqual([sessionId]);
  const exported = await toolgate(["audit", "export"], {
    TOOLGATE_URL: service.url,
    TOOLGATE_TOKEN: "approver-token-for-tests",
  });
  expect(exported.stdout.split("\n").filter((line) => line.includes(`"rootSessionId":"${sessionId}"`))).toHaveLength(9);
});
