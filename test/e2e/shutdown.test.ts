import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { Code } from "@connectrpc/connect";
import { expect, test } from "vitest";
import { PermissionReply, ToolErrorReason } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { untilDead } from "../tools/processes.ts";
import { connect, refusal } from "./clients.ts";
import { ledger } from "./ledger.ts";
import { read } from "./reading.ts";
import { startService, unconfined } from "./service.ts";

test("SIGTERM ends streams with DRAINING, retains a waiting call, and the next start completes it", async () => {
  const service = await startService();
  const agent = connect(service, "caller");
  const sessionId = await agent.newSession();
  const runs = ledger(service);
  const call = { sessionId, callId: "c1", tool: "bash", input: { command: `${runs.append("ran")}; echo done` } };
  const before = read(agent.tools.executeTool(call));
  const ask = await before.until("permissionAsked");
  const watcher = read(connect(service, "watcher").tools.watchSession({ sessionId }));
  await watcher.until("permissionAsked");
  const ends = [before, watcher].map((stream) => refusal(stream.end()));
  expect(await service.stop()).toBe(0);
  for (const end of await Promise.all(ends)) expect(end).toMatchObject({ code: Code.Unavailable, reason: "DRAINING" });

  await service.start();
  const after = read(connect(service, "caller").tools.executeTool({ ...call, afterSeq: before.lastSeq }));
  const person = connect(service, "approver");
  expect((await person.permissions.listPermissions({ sessionId })).permissions).toEqual([ask]);
  await person.permissions.respondToPermission({ sessionId, permissionId: ask.id, reply: PermissionReply.ONCE });
  expect((await after.end()).state.value).toMatchObject({ output: "done\n" });
  expect(await runs.lines()).toHaveLength(1);
  const rest = read(connect(service, "watcher").tools.watchSession({ sessionId, afterSeq: watcher.lastSeq }));
  await rest.find(({ event }) => event.case === "part" && event.value.state.case === "completed");
  expect(rest.seen).toEqual(after.seen);
});

test("SIGTERM lets a running call finish", async () => {
  const service = await startService();
  const agent = connect(service, "caller");
  const sessionId = await agent.newSession();
  const input = { command: "echo begun; until [ -e go ]; do sleep 0.02; done; echo done" };
  const call = { sessionId, callId: "c1", agent: "free", tool: "bash", input };
  const stream = read(agent.tools.executeTool(call));
  await stream.until("output");
  const refused = refusal(stream.end());
  const stopped = service.stop();
  expect(await refused).toMatchObject({ reason: "DRAINING" });
  await writeFile(join(service.workspace, "go"), "");
  expect(await stopped).toBe(0);
  await service.start();
  const { part } = await connect(service, "caller").tools.callTool(call);
  expect(part?.state.value).toMatchObject({ output: "begun\ndone\n" });
});

test("a call that takes longer than the drain is ended, and so are its processes", async () => {
  const service = await startService({ settings: `drain_ms = 100\n${unconfined}` });
  const agent = connect(service, "caller");
  const sessionId = await agent.newSession();
  const call = { sessionId, callId: "c1", agent: "free", tool: "bash", input: { command: "echo $$; sleep 600" } };
  const stream = read(agent.tools.executeTool(call));
  const pid = Number(Buffer.from((await stream.until("output")).data).toString());
  expect(await service.stop()).toBe(0);
  await untilDead(pid);
  await service.start();
  const { part } = await connect(service, "caller").tools.callTool(call);
  expect(part?.state.value).toMatchObject({
    reason: ToolErrorReason.CANCELLED,
    error: expect.stringContaining("service was stopped"),
  });
});
