import { expect, test } from "vitest";
import { PermissionReply, ToolEffects, ToolErrorReason } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { untilDead } from "../tools/processes.ts";
import { connect } from "./clients.ts";
import { ledger } from "./ledger.ts";
import { nameOf, read } from "./reading.ts";
import { startService, unconfined } from "./service.ts";

test("kill -9 while a tool runs: its end is EXECUTOR_LOST, its processes are dead, and it never runs again", async () => {
  const service = await startService({ settings: `lease_ms = 1000\n${unconfined}` });
  const agent = connect(service, "caller");
  const sessionId = await agent.newSession();
  const runs = ledger(service);
  const input = { command: `${runs.append("ran")}; setsid sleep 600 & echo $!; wait` };
  const call = { sessionId, callId: "c1", agent: "free", tool: "bash", input };
  const before = read(agent.tools.executeTool(call));
  const pid = Number(Buffer.from((await before.until("output")).data).toString());
  const cut = expect(before.end()).rejects.toThrow();
  await service.kill();
  await cut;
  await untilDead(pid);

  await service.start();
  const again = connect(service, "caller");
  const after = read(again.tools.executeTool({ ...call, afterSeq: before.lastSeq }));
  const part = await after.end();
  expect(part.state).toMatchObject({
    case: "error",
    value: { reason: ToolErrorReason.EXECUTOR_LOST, effects: ToolEffects.UNKNOWN },
  });
  expect((await again.tools.callTool(call)).part).toEqual(part);
  expect(await runs.lines()).toHaveLength(1);
  const whole = read(again.tools.executeTool(call));
  await whole.end();
  expect([...before.seen, ...after.seen]).toEqual(whole.seen);
  expect(whole.seen.map(nameOf)).toEqual(["pending", "running", "output", "error"]);
});

test("kill -9 while an answer is given: it can be given again, and the call runs at most once", async () => {
  const service = await startService({ settings: `lease_ms = 1000\n${unconfined}` });
  const agent = connect(service, "caller");
  const sessionId = await agent.newSession();
  const runs = ledger(service);
  const call = { sessionId, callId: "c1", tool: "bash", input: { command: runs.append("ran") } };
  const before = read(agent.tools.executeTool(call));
  const { id: permissionId } = await before.until("permissionAsked");
  const answer = { sessionId, permissionId, reply: PermissionReply.ONCE, replyId: "r1" };
  const given = Promise.allSettled([
    connect(service, "approver").permissions.respondToPermission(answer),
    before.end(),
  ]);
  await service.kill();
  await given;
  await service.start();
  await connect(service, "approver").permissions.respondToPermission(answer);
  const { part } = await connect(service, "caller").tools.callTool(call);
  const end = part?.state.case === "error" ? part.state.value.reason : part?.state.case;
  // If it had started, what it did is not known.
  const most = { completed: [1], [ToolErrorReason.EXECUTOR_LOST]: [0, 1] }[String(end)];
  expect(most).toContain((await runs.lines()).length);
});
