import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { Code } from "@connectrpc/connect";
import { expect, test } from "vitest";
import { PermissionReply, ToolEffects, ToolErrorReason } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { connect, refusal } from "./clients.ts";
import { ledger } from "./ledger.ts";
import { read } from "./reading.ts";
import { type Service, startService } from "./service.ts";

/** A batch of a command that asks and one that ends at once, of which the first waits for its answer. */
async function startBatch(service: Service, { atomic = false } = {}) {
  const [agent, watcher] = [connect(service, "caller"), connect(service, "watcher")];
  const sessionId = await agent.newSession();
  const runs = ledger(service);
  const tools = [
    { tool: "bash", args: { command: runs.append("ran") } },
    { tool: "echo", args: { text: "at once" } },
  ];
  const call = { sessionId, callId: "c1", tool: "batch", input: { tools, ...(atomic && { atomic }) } };
  const log = read(watcher.tools.watchSession({ sessionId }));
  await agent.tools.callTool({ ...call, waitMs: 0 });
  const ask = await log.until("permissionAsked");
  const answer = (at: Service) =>
    connect(at, "approver").permissions.respondToPermission({
      sessionId,
      permissionId: ask.id,
      reply: PermissionReply.ONCE,
    });
  const result = { metadata: { failed: 0 }, output: expect.stringContaining("All 2 tools executed successfully.") };
  return { call, log, ask, answer, runs, result };
}

const endOf = async (service: Service, call: Parameters<ReturnType<typeof connect>["tools"]["callTool"]>[0]) =>
  (await connect(service, "caller").tools.callTool({ ...call, waitMs: 60_000 })).part?.state.value;

test("a stop does not wait for a batch whose call waits; it retains the request, and the next start completes the batch", async () => {
  const service = await startService({ settings: "drain_ms = 3600000" });
  const { call, ask, answer, runs, result } = await startBatch(service);
  expect(await service.stop()).toBe(0);
  await service.start();
  const { permissions } = await connect(service, "approver").permissions.listPermissions({ sessionId: call.sessionId });
  expect(permissions).toEqual([ask]);
  await answer(service);
  expect(await endOf(service, call)).toMatchObject(result);
  expect(await runs.lines()).toHaveLength(1);
});

test("an answer during the drain stands: the call and its batch are completed after the restart", async () => {
  const service = await startService({ settings: "drain_ms = 3600000" });
  const { call, log, answer, runs, result } = await startBatch(service);
  const agent = connect(service, "caller");
  const hold = { sessionId: call.sessionId, callId: "hold", agent: "free", tool: "bash" };
  const command = "echo begun; until [ -e go ]; do sleep 0.02; done";
  await agent.tools.callTool({ ...hold, input: { command }, waitMs: 0 });
  await log.until("output");
  const stopped = service.stop();
  await expect.poll(async () => await (await fetch(`${service.url}/readyz`)).text()).toBe("draining\n");
  await answer(service);
  const refused = { code: Code.Unavailable, reason: "DRAINING" };
  expect(await refusal(agent.tools.callTool({ ...call, callId: "c2" }))).toMatchObject(refused);
  expect((await agent.tools.callTool({ ...call, waitMs: 0 })).part?.state.case).toBe("running");
  await writeFile(join(service.workspace, "go"), "");
  expect(await stopped).toBe(0);
  await service.start();
  expect(await endOf(service, call)).toMatchObject(result);
  expect(await runs.lines()).toHaveLength(1);
});

test("a batch is resumed after kill -9 with the results that its calls have by then, or cancelled with them", async () => {
  const service = await startService();
  const [{ call, answer, runs, result }, other] = [await startBatch(service), await startBatch(service)];
  await service.kill();
  await service.start();
  await answer(service);
  expect(await endOf(service, call)).toMatchObject(result);
  expect(await runs.lines()).toHaveLength(1);

  const { sessionId, callId } = other.call;
  const { tools } = connect(service, "caller");
  const cancelled = { reason: ToolErrorReason.CANCELLED };
  expect((await tools.cancelTool({ sessionId, callId })).part?.state.value).toMatchObject(cancelled);
  const log = read(tools.watchSession({ sessionId, afterSeq: other.log.lastSeq }));
  expect((await log.until("permissionSettled")).permissionId).toBe(other.ask.id);
  const { parts } = await tools.listToolParts({ sessionId });
  const ends = parts.map(({ callId, state }) => [callId, state.case]);
  expect(Object.fromEntries(ends)).toEqual({ c1: "error", "c1.1": "error", "c1.2": "completed" });
});

test("an atomic batch whose calls have not started is resumed after a stop and after kill -9", async () => {
  const service = await startService({ settings: "drain_ms = 3600000" });
  const { call, ask, answer, runs, result } = await startBatch(service, { atomic: true });
  const partsOf = async () => {
    const { parts } = await connect(service, "caller").tools.listToolParts({ sessionId: call.sessionId });
    return Object.fromEntries(parts.map(({ callId, state }) => [callId, state.case]));
  };
  const waiting = { c1: "running", "c1.1": "pending", "c1.2": "pending" };
  for (const end of [service.stop, service.kill]) {
    await end();
    await service.start();
    const { permissions } = await connect(service, "approver").permissions.listPermissions({
      sessionId: call.sessionId,
    });
    expect(permissions).toEqual([ask]);
    expect(await partsOf()).toEqual(waiting);
  }
  await answer(service);
  expect(await endOf(service, call)).toMatchObject(result);
  expect(await runs.lines()).toHaveLength(1);
});

test("an atomic batch whose calls had started before kill -9 is lost, and none of its calls starts afterwards", async () => {
  const service = await startService();
  const { sessions, tools } = connect(service, "caller");
  const sessionId = (await sessions.createSession({})).session?.id ?? "";
  const shell = (command: string) => ({ tool: "bash", args: { command } });
  const input = { tools: [shell("echo begun; sleep 600"), shell("echo begun; sleep 600")], atomic: true };
  const call = { sessionId, callId: "c1", agent: "free", tool: "batch", input };
  const log = read(tools.watchSession({ sessionId }));
  await tools.callTool({ ...call, waitMs: 0 });
  await log.until("output");
  await service.kill();
  await service.start();
  const lost = { reason: ToolErrorReason.EXECUTOR_LOST, effects: ToolEffects.UNKNOWN };
  expect(await endOf(service, call)).toMatchObject(lost);
  const { parts } = await connect(service, "caller").tools.listToolParts({ sessionId });
  expect(parts.map(({ state }) => state.case)).toEqual(["error", "error", "error"]);
});
