import { once } from "node:events";
import { connect, createServer } from "node:net";
import { setTimeout as delay } from "node:timers/promises";
import { expect, onTestFinished, test, vi } from "vitest";
import type { ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { openRedisStore } from "../../src/store/redis/store.ts";
import { startSentinelWithCopies } from "../store/redis-failover.ts";
import { quiet } from "../store/redis-store.ts";
import { createHosts, type Hosts } from "./hosts.ts";
import { endsOf, work } from "./load.ts";
import { isLong } from "./report.ts";
import { longLeaseMs, startSystem } from "./system.ts";
import { conclude } from "./trial.ts";
import type { Line } from "./wire.ts";

const rounds = isLong ? 10 : 1;
const lines: readonly Line[] = ["reset", "forget", "nothing passes", "no commands pass", "no answers pass"];

test("F5 a Redis pause shorter than a lease ends no call", async () => {
  const system = await startSystem({ leaseMs: longLeaseMs });
  const hosts = createHosts(system);
  const stop = new AbortController();
  const working = work(hosts, 6, stop.signal);
  for (let round = 0; round < 2 * rounds; round += 1) {
    await delay(500);
    const thaw = await system.freezeRedis();
    await delay(1_000);
    thaw();
  }
  await delay(500);
  stop.abort();
  const parts = await working;
  expect(endsOf(parts)).toBe(`${parts.length} completed`);
  await conclude(system, hosts, { fault: "F5 Redis frozen 1 s", faults: 2 * rounds, seen: endsOf(parts) });
});

test("F5 a Redis pause longer than a lease stops running calls, and nothing runs twice", async () => {
  const system = await startSystem({ leaseMs: 3_000 });
  const hosts = createHosts(system);
  const stop = new AbortController();
  const working = work(hosts, 6, stop.signal);
  const stopped: ToolPart[] = [];
  for (let round = 0; round < rounds; round += 1) {
    const sessionId = await hosts.newSession(round);
    const ended = hosts.call({ sessionId, callId: `runs-on${round}`, at: round, ticks: 2_000 });
    await vi.waitUntil(async () => (await startsOf(hosts, `runs-on${round}`)) > 0, { timeout: 60_000 });
    const thaw = await system.freezeRedis();
    await delay(4_500);
    thaw();
    stopped.push(await ended);
  }
  stop.abort();
  const parts = await working;
  expect(endsOf(stopped)).toBe(`${rounds} EXECUTOR_LOST`);
  const seen = endsOf([...parts, ...stopped]);
  await conclude(system, hosts, { fault: "F5 Redis frozen 4.5 s", faults: rounds, seen });
});

test("F5 a replica that is stopped while Redis is frozen ends, with what runs there", async () => {
  const system = await startSystem({ count: 2, settings: "drain_ms = 100" });
  const hosts = createHosts(system);
  const sessionId = await hosts.newSession(0);
  const ended = hosts.call({ sessionId, callId: "runs-on", at: 0, ticks: 2_000 });
  await vi.waitUntil(async () => (await startsOf(hosts, "runs-on")) > 0, { timeout: 60_000 });
  const thaw = await system.freezeRedis();
  expect(await system.at(0).stop()).toBe(0);
  expect(await system.children()).toEqual([]);
  thaw();
  const seen = endsOf([await ended]);
  expect(seen).toBe("1 EXECUTOR_LOST");
  await system.at(0).start();
  await conclude(system, hosts, { fault: "F5 a replica stopped while Redis is frozen", faults: 1, seen });
});

test("F6 asks survive every cut of the connection to Redis, shorter or longer than a lease", async () => {
  // All connections are cut at the same time, each in another way; two stay for the answers, unless all are cut.
  const system = await startSystem({ count: lines.length + 2, leaseMs: 4_000 });
  const hosts = createHosts(system);
  const sessionId = await hosts.newSession();
  const ends: ToolPart[] = [];
  const shorter = { cutMs: 2_400, isAnyLeft: false };
  const longer = { cutMs: 5_500, isAnyLeft: true };
  const cuts = isLong
    ? [shorter, { ...shorter, isAnyLeft: true }, longer, { ...longer, isAnyLeft: false }]
    : [shorter, longer];
  const all = Array.from({ length: isLong ? 5 : 1 }, () => cuts).flat();
  for (const [index, { cutMs, isAnyLeft }] of all.entries()) {
    const cut = Promise.withResolvers<void>();
    const calls = lines.flatMap((line, at) =>
      // Half of the answers come during the cut, half afterwards.
      [100, 400, cutMs + 100, cutMs + 700].map((answerMs) => {
        const asked = Promise.withResolvers<void>();
        const beforeAnswer = async () => {
          asked.resolve();
          await cut.promise;
          await delay(answerMs);
        };
        const callId = `c${index}-${line.replaceAll(" ", "-")}-${cutMs}-${answerMs}`;
        const wish = { sessionId, callId, at, asks: true, answersAfter: lines.length - 1, beforeAnswer };
        return { asked: asked.promise, ended: hosts.call(wish) };
      }),
    );
    await Promise.all(calls.map(({ asked, ended }) => Promise.race([asked, ended])));
    for (const [at, { wire }] of system.replicas.entries()) {
      const line = lines[isAnyLeft ? at : at % lines.length];
      if (line) wire.set(line);
    }
    cut.resolve();
    await delay(cutMs);
    system.openLines();
    const parts = await Promise.all(calls.map(({ ended }) => ended));
    expect.soft(parts.filter(({ state }) => state.case !== "completed").map(({ callId }) => callId)).toEqual([]);
    ends.push(...parts);
  }
  await conclude(system, hosts, {
    fault: "F6 line cut 2.4 s or 5.5 s, asks open",
    faults: all.length * lines.length,
    seen: endsOf(ends),
  });
});

test("F6 repeated cuts of the connection under load: nothing is lost, nothing runs twice", async () => {
  const system = await startSystem();
  const hosts = createHosts(system);
  const stop = new AbortController();
  const working = work(hosts, 6, stop.signal);
  let faults = 0;
  for (let round = 0; round < (isLong ? 20 : 1); round += 1) {
    for (const [index, line] of lines.entries()) {
      system.at(index).wire.set(line);
      await delay(700);
      system.at(index).wire.set("open");
      await delay(200);
      faults += 1;
    }
  }
  stop.abort();
  const parts = await working;
  await conclude(system, hosts, { fault: "F6 line cut 0.7 s, under load", faults, seen: endsOf(parts) });
});

test("F7 a step whose answer was lost is applied once", async () => {
  const system = await startSystem({ leaseMs: longLeaseMs });
  const hosts = createHosts(system);
  for (const { wire } of system.replicas) wire.loseAnswers(60);
  const stop = new AbortController();
  const working = work(hosts, 6, stop.signal);
  const lostSoFar = () => system.replicas.reduce((sum, { wire }) => sum + wire.lost, 0);
  await vi.waitUntil(() => lostSoFar() >= (isLong ? 600 : 40), { timeout: 240_000 });
  stop.abort();
  const parts = await working;
  for (const { wire } of system.replicas) wire.loseAnswers(0);
  const lost = lostSoFar();
  expect(endsOf(parts)).toBe(`${parts.length} completed`);
  await conclude(system, hosts, { fault: "F7 each 60th answer of Redis lost", faults: lost, seen: endsOf(parts) });
});

test("F6 a sentinel that falls silent while it is asked for the master is asked again", async () => {
  const servers = await startSentinelWithCopies(1);
  onTestFinished(servers.stop);
  let asked = 0;
  const sentinel = createServer((client) => {
    asked += 1;
    if (asked === 1) return;
    const line = connect(Number(new URL(servers.url).port), "127.0.0.1");
    client.pipe(line).pipe(client);
    for (const socket of [client, line]) socket.on("error", () => socket.destroy());
  });
  sentinel.listen(0, "127.0.0.1");
  await once(sentinel, "listening");
  onTestFinished(() => void sentinel.close());
  const address = sentinel.address();
  const url = `redis+sentinel://127.0.0.1:${typeof address === "object" ? address?.port : ""}/main`;
  const { calls } = await openRedisStore({ url, log: quiet });
  expect(await calls.ready()).toBe(true);
  expect(asked).toBeGreaterThan(1);
  await calls.close();
});

/** Counts the starts of this call's command. */
async function startsOf({ ledger }: Hosts, callId: string): Promise<number> {
  return (await ledger.lines()).filter((line) => line.callId === callId && line.word === "start").length;
}
