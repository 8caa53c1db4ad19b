import { existsSync } from "node:fs";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { Code, ConnectError } from "@connectrpc/connect";
import { Redis } from "ioredis";
import { expect, onTestFinished, test, vi } from "vitest";
import { PermissionReply, ToolEffects, ToolErrorReason } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { openRedisStore } from "../../src/store/redis/store.ts";
import { refusal } from "../e2e/clients.ts";
import { startSentinelWithCopies } from "../store/redis-failover.ts";
import { quiet } from "../store/redis-store.ts";
import { report } from "./report.ts";
import { startSystem } from "./system.ts";

/** Servers fail over in their own time, also where the default is shorter. */
const timeout = 300_000;

test("F0 a copy that lacks acknowledged work becomes the master: retries and watchers get STORE_CHANGED, and nothing runs twice", {
  timeout,
}, async () => {
  const servers = await startSentinelWithCopies(2);
  onTestFinished(servers.stop);
  const [master = 0, copy = 0, late = 0] = servers.ports;
  onTestFinished(() => {
    for (const port of servers.ports) servers.signal(port, "SIGCONT");
  });
  // One of the two copies counts as enough, so that the other one can lack what was acknowledged.
  const system = await startSystem({ store: servers.url, count: 2, settings: "store_copies = 1" });
  const agent = system.at(0).as("caller");
  const sessionId = `ses_${crypto.randomUUID()}`;
  const { storeId } = await agent.sessions.createSession({ sessionId });
  const call = {
    ...{ sessionId, callId: "once", tool: "bash", agent: "free", expectedStoreId: storeId, waitMs: 60_000 },
    input: { command: "echo ran >> ledger-once" },
  };
  const watched = (async () => {
    // A watcher goes on after what it has seen when its stream is cut.
    for (let afterSeq = 0n; ; ) {
      const events = system.at(1).as("watcher").tools.watchSession({ sessionId, afterSeq });
      try {
        for await (const { event } of events) afterSeq = event?.seq ?? afterSeq;
      } catch (error) {
        if (ConnectError.from(error).code !== Code.Unavailable) throw error;
        await delay(200);
      }
    }
  })();
  const ending = refusal(watched);

  // It is approved, starts and ends while only one copy follows, so the other one has it with its request open.
  const approvedCall = {
    ...{ sessionId, callId: "approved", tool: "bash", agent: "build", expectedStoreId: storeId, waitMs: 0 },
    input: { command: "echo ran >> ledger-approved" },
  };
  await agent.tools.callTool(approvedCall);
  const partOf = () => agent.tools.getToolPart({ sessionId, callId: "approved" });
  const permissionId = await vi.waitUntil(async () => (await partOf()).permissions[0]?.id, { timeout: 60_000 });
  const approve = (index: number) =>
    system
      .at(index)
      .as("approver")
      .permissions.respondToPermission({ sessionId, permissionId, reply: PermissionReply.ONCE });
  const direct = new Redis({ host: "127.0.0.1", port: master });
  await direct.set("written-last", "");
  expect(await direct.wait(2, 60_000)).toBe(2);
  direct.disconnect();

  servers.signal(late, "SIGSTOP");
  // Otherwise it finds the rest in the buffer of its connection when it goes on.
  const client = new Redis({ host: "127.0.0.1", port: master });
  await client.client("KILL", "TYPE", "REPLICA");
  client.disconnect();
  const made = () => agent.tools.callTool(call).catch(() => undefined);
  await vi.waitUntil(async () => (await made())?.part?.state.case === "completed", { timeout: 60_000 });
  await approve(0);
  await vi.waitUntil(async () => (await partOf()).part?.state.case === "completed", { timeout: 60_000 });
  for (const port of [master, copy]) servers.signal(port, "SIGSTOP");
  servers.signal(late, "SIGCONT");
  for (const replica of system.replicas) {
    const retry = () => refusal(replica.as("caller").tools.callTool(call));
    await vi.waitUntil(async () => (await retry()).code !== Code.Unavailable, { timeout: 60_000 });
    expect(await retry()).toMatchObject({ code: Code.DataLoss, reason: "STORE_CHANGED" });
  }
  expect(await ending).toMatchObject({ code: Code.DataLoss, reason: "STORE_CHANGED" });
  expect(existsSync(join(system.workspace, "ledger-once"))).toBe(true);
  expect(await readFile(join(system.workspace, "ledger-once"), "utf8")).toBe("ran\n");

  // A client that names no store, or the new one, goes on.
  for (const port of [master, copy]) servers.signal(port, "SIGCONT");
  await servers.settle();
  const { storeId: now } = await agent.sessions.createSession({ sessionId });
  expect(now).not.toBe(storeId);
  expect((await agent.tools.callTool({ ...call, expectedStoreId: now })).part?.state.case).toBe("completed");
  // The request is open again. Its answer does not run the call a second time.
  await approve(1);
  const again = await agent.tools.callTool({ ...approvedCall, expectedStoreId: now, waitMs: 60_000 });
  expect(again.part?.state).toMatchObject({
    case: "error",
    value: { reason: ToolErrorReason.EXECUTOR_LOST, effects: ToolEffects.UNKNOWN },
  });
  expect(await readFile(join(system.workspace, "ledger-approved"), "utf8")).toBe("ran\n");
  report({
    ...{
      fault: "F0 a copy without acknowledged work is promoted",
      faults: 1,
      calls: 3,
      answers: 2,
      runs: 3,
      violations: 0,
    },
    seen: "the retry and the watcher STORE_CHANGED",
  });
});

test("F0 a store that was closed during a failover compares what it had acknowledged before", { timeout }, async () => {
  const servers = await startSentinelWithCopies(1);
  onTestFinished(servers.stop);
  const directory = await mkdtemp(join(tmpdir(), "toolgate-histories-"));
  onTestFinished(() => rm(directory, { recursive: true }));
  const idAtOpening = async (settings: { historyFile?: string }) => {
    const { calls } = await openRedisStore({ url: servers.url, log: quiet, copies: { strict: false }, ...settings });
    const id = calls.storeIdOf("ses_a");
    await calls.close();
    return id;
  };
  const historyFile = join(directory, "histories.json");
  const before = await idAtOpening({ historyFile });
  // Without strict mode the copy may still lack the store id itself.
  const client = new Redis({ host: "127.0.0.1", port: servers.ports[0] ?? 0 });
  await client.set("written-last", "");
  expect(await client.wait(1, 10_000)).toBe(1);
  client.disconnect();
  await servers.failOver("planned");
  await servers.settle();
  // Control: one that has acknowledged nothing finds nothing missing.
  expect(await idAtOpening({})).toBe(before);
  const after = await idAtOpening({ historyFile });
  expect(after).not.toBe(before);
  expect(after.split(".")[0]).toBe(before.split(".")[0]);
});
