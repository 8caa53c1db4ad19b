import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { Code } from "@connectrpc/connect";
import { expect, test, vi } from "vitest";
import { PermissionReply } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { refusal } from "../e2e/clients.ts";
import { createHosts } from "./hosts.ts";
import { createLedger } from "./ledger.ts";
import { endsOf, work } from "./load.ts";
import { isLong, report } from "./report.ts";
import { startSystem } from "./system.ts";
import { conclude } from "./trial.ts";

const rounds = isLong ? 20 : 2;

// The invariants of logs do not hold across a reported loss of the store, so these tests have their own checks.
test("F3 an emptied Redis: each retry is refused with STORE_CHANGED, running calls are stopped, and nothing runs twice", async () => {
  const system = await startSystem();
  const ledger = createLedger(system.workspace);
  let [calls, answers] = [0, 0];
  for (let round = 0; round < rounds; round += 1) {
    const sessionId = `ses_${crypto.randomUUID()}`;
    const agent = system.at(round).as("caller");
    const { session } = await agent.sessions.createSession({ sessionId });
    const { storeId } = await agent.tools.getServerInfo({});
    const make = (callId: string, agent: string, ticks: number) => ({
      ...{ sessionId, callId: `${callId}${round}`, tool: "bash", agent, expectedStoreId: storeId },
      input: { command: ledger.command(`${callId}${round}`, ticks) },
    });
    const all = [make("ended", "free", 1), make("asking", "build", 1), make("running", "free", 600)];
    for (const call of all) await agent.tools.callTool({ ...call, waitMs: 0 });
    calls += all.length;
    await agent.tools.callTool({ ...all[0], waitMs: 60_000 });
    const ran = async () => (await ledger.lines()).some(({ callId }) => callId === `running${round}`);
    await vi.waitUntil(ran, { timeout: 60_000 });
    const asked = async () => (await agent.permissions.listPermissions({ sessionId })).permissions;
    await vi.waitUntil(async () => (await asked()).length > 0, { timeout: 60_000 });
    const permissions = await asked();
    expect(permissions).toHaveLength(1);

    await system.emptyRedis();
    for (const replica of system.replicas) {
      await vi.waitUntil(async () => (await fetch(`${replica.url}/readyz`)).status === 200, { timeout: 60_000 });
      for (const call of all)
        expect(await refusal(replica.as("caller").tools.callTool(call))).toMatchObject({ code: Code.DataLoss });
      const again = replica.as("caller").sessions.createSession({ sessionId, expectedStoreId: storeId });
      expect(await refusal(again)).toMatchObject({ code: Code.DataLoss });
      for (const { id: permissionId } of permissions) {
        const answer = replica.as("approver").permissions.respondToPermission({ sessionId, permissionId, reply: 1 });
        expect(await refusal(answer)).toMatchObject({ code: Code.NotFound });
        answers += 1;
      }
    }
    await vi.waitUntil(async () => (await system.children()).length === 0, { timeout: 60_000 });
    expect(session?.id).toBe(sessionId);
  }
  const starts = (await ledger.lines()).filter(({ word }) => word === "start").map(({ callId }) => callId);
  const expected = Array.from({ length: rounds }, (_, round) => [`ended${round}`, `running${round}`]).flat();
  // The calls of a round start at the same time.
  expect(starts.toSorted()).toEqual(expected.toSorted());
  const seen = "each retry DATA_LOSS";
  report({ fault: "F3 Redis emptied", faults: rounds, calls, answers, runs: starts.length, violations: 0, seen });
});

test.each([true, false])(
  "F4 a Redis set back to an older dump, while replicas run (%s): nothing runs twice, retries get STORE_CHANGED, grants are suspended",
  async (isWhileRunning) => {
    const system = await startSystem({ count: 2 });
    const ledger = createLedger(system.workspace);
    const sessionId = `ses_${crypto.randomUUID()}`;
    const [agent, person] = [system.at(0).as("caller"), system.at(1).as("approver")];
    const { storeId } = await agent.sessions.createSession({ sessionId });
    const make = (callId: string, agent: string, command = ledger.command(callId, 1)) => ({
      ...{ sessionId, callId, tool: "bash", agent, expectedStoreId: storeId, input: { command } },
    });
    const [always, waits, after] = [
      make("always", "build", "mkdir -p made"),
      make("waits", "build"),
      make("after", "free"),
    ];
    const { permissions } = (await agent.tools.callTool({ ...always, waitMs: 5_000 })) ?? {};
    const permissionId = permissions?.[0]?.id ?? "";
    await person.permissions.respondToPermission({ sessionId, permissionId, reply: PermissionReply.ALWAYS });
    expect((await agent.tools.callTool(always)).part?.state.case).toBe("completed");
    await agent.tools.callTool({ ...waits, waitMs: 5_000 });
    await system.redis.save();
    const saved = Number(await system.redis.hget("toolgate:{histories}:counter", "count"));
    const isKnown = async ({ data }: { data: string }) => {
      const text = await readFile(join(data, "redis-counter.json"), "utf8").catch(() => '{"count":0}');
      return Number(JSON.parse(text).count) > saved;
    };
    await vi.waitUntil(async () => (await Promise.all(system.replicas.map(isKnown))).every(Boolean), waiting);
    expect((await agent.tools.callTool(after)).part?.state.case).toBe("completed");

    if (!isWhileRunning) for (const replica of system.replicas) await replica.kill();
    await system.emptyRedis();
    if (!isWhileRunning) for (const replica of system.replicas) await replica.start();
    for (const replica of system.replicas) {
      await vi.waitUntil(async () => (await fetch(`${replica.url}/readyz`)).status === 200, waiting);
      const { tools } = replica.as("caller");
      for (const call of [after, waits, always])
        expect(await refusal(tools.callTool(call))).toMatchObject({ code: Code.DataLoss });
    }
    const { grants } = await system.at(0).as("approver").permissions.listGrants({});
    expect(grants).toMatchObject([{ suspended: expect.toSatisfy((time: number) => time > 0) }]);
    const other = await system.at(1).as("caller").newSession({ agent: "build" });
    const again = { ...always, sessionId: other, expectedStoreId: "" };
    expect(
      (
        await system
          .at(1)
          .as("caller")
          .tools.callTool({ ...again, callId: "1", waitMs: 5_000 })
      ).permissions,
    ).toHaveLength(1);
    await system
      .at(0)
      .as("approver")
      .permissions.confirmGrant({ grantId: grants[0]?.id ?? "" });
    expect((await system.at(1).as("approver").permissions.listGrants({})).grants).toMatchObject([{ suspended: 0 }]);
    const starts = (await ledger.lines()).filter(({ word }) => word === "start").map(({ callId }) => callId);
    expect(starts).toEqual(["after"]);
    report({
      ...{ fault: "F4 Redis set back to an older dump", faults: 1, calls: 5, answers: 1, runs: starts.length },
      ...{ violations: 0, seen: `each retry DATA_LOSS; replicas ${isWhileRunning ? "ran" : "were stopped"}` },
    });
  },
);

test("F4 a Redis with `appendfsync always` that is killed under load has all of it: no store id changes, and nothing runs twice", async () => {
  const system = await startSystem({ redis: ["--appendonly", "yes", "--appendfsync", "always"] });
  const hosts = createHosts(system, { mayLose: true });
  const stop = new AbortController();
  const working = work(hosts, 4, stop.signal);
  working.catch(() => stop.abort());
  for (let round = 0; round < rounds; round += 1) {
    const enough = hosts.ended + 6;
    await vi.waitUntil(() => hosts.ended >= enough || stop.signal.aborted, waiting);
    await system.emptyRedis();
  }
  const enough = hosts.ended + 6;
  await vi.waitUntil(() => hosts.ended >= enough || stop.signal.aborted, waiting);
  stop.abort();
  const seen = endsOf(await working);
  expect(await hosts.changedSessions()).toEqual([]);
  await conclude(system, hosts, { fault: "F4 Redis with an append-only file is killed", faults: rounds, seen });
});

const waiting = { timeout: 60_000, interval: 100 };
