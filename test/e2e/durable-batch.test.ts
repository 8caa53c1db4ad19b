import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { isDeepStrictEqual } from "node:util";
import type { JsonObject } from "@bufbuild/protobuf";
import { Code } from "@connectrpc/connect";
import { describe, expect, test } from "vitest";
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
  const call = { sessionId, callId: "c1", tool: "batch", input: { tools, atomic } };
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

describe("an atomic batch whose calls had started before kill -9", () => {
  const shell = (command: string) => ({ tool: "bash", args: { command } });
  const write = (filePath: string, content: string) => ({ tool: "write", args: { filePath, content } });

  /** Starts an atomic batch over files that the session has read, and kills the service when a command of the batch says so. */
  async function interrupt(files: Record<string, string>, tools: object[]) {
    const service = await startService();
    const { sessions, tools: calls } = connect(service, "caller");
    const sessionId = (await sessions.createSession({})).session?.id ?? "";
    for (const [name, content] of Object.entries(files)) {
      await writeFile(join(service.workspace, name), content);
      await calls.callTool({ sessionId, tool: "read", input: { filePath: name } });
    }
    const call = {
      sessionId,
      callId: "c1",
      agent: "free",
      tool: "batch",
      input: { tools, atomic: true } as JsonObject,
    };
    const log = read(calls.watchSession({ sessionId }));
    await calls.callTool({ ...call, waitMs: 0 });
    await log.until("output");
    await service.kill();
    const contentOf = (name: string) => readFile(join(service.workspace, name), "utf8").catch(() => undefined);
    const partsOf = async () => (await connect(service, "caller").tools.listToolParts({ sessionId })).parts;
    return { service, call, contentOf, partsOf, pathOf: (name: string) => join(service.workspace, name) };
  }

  test("is resumed with the results of its calls, and restores what they wrote, only where it is still that", async () => {
    const patchText = "*** Begin Patch\n*** Delete File: gone.txt\n*** End Patch";
    const written = "until grep -q after kept.txt && grep -q after touched.txt && [ ! -e gone.txt ] && [ -e new.txt ]";
    const { service, call, contentOf, partsOf, pathOf } = await interrupt(
      { "kept.txt": "before\n", "touched.txt": "before\n", "gone.txt": "before\n" },
      [
        write("kept.txt", "after\n"),
        write("touched.txt", "after\n"),
        write("new.txt", "after\n"),
        { tool: "apply_patch", args: { patchText } },
        shell(`${written}; do sleep 0.02; done; echo seen; sleep 600`),
      ],
    );
    await writeFile(pathOf("touched.txt"), "by a person\n");
    await service.start();
    const end = await endOf(service, call);
    expect(end).toMatchObject({
      reason: ToolErrorReason.FAILED,
      effects: ToolEffects.UNKNOWN,
      error: expect.stringContaining(`Not restored: ${pathOf("touched.txt")} (it does not hold what the batch wrote)`),
      metadata: {
        restored: expect.toSatisfy((files: string[]) =>
          isDeepStrictEqual(files.toSorted(), ["gone.txt", "kept.txt", "new.txt"].map(pathOf)),
        ),
        cannotBeTakenBack: [{ callId: "c1.5", tool: "bash" }],
      },
    });
    expect(await contentOf("kept.txt")).toBe("before\n");
    expect(await contentOf("gone.txt")).toBe("before\n");
    expect(await contentOf("new.txt")).toBeUndefined();
    expect(await contentOf("touched.txt")).toBe("by a person\n");
    const parts = await partsOf();
    expect(parts.find(({ callId }) => callId === "c1.5")?.state.value).toMatchObject({
      reason: ToolErrorReason.EXECUTOR_LOST,
    });
    expect(parts.filter(({ state }) => state.case === "pending" || state.case === "running")).toEqual([]);
  });
});
