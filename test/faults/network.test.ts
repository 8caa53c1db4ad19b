import { setTimeout as delay } from "node:timers/promises";
import { expect, test } from "vitest";
import type { ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { createHosts } from "./hosts.ts";
import { endsOf, work } from "./load.ts";
import { isLong } from "./report.ts";
import { startSystem } from "./system.ts";
import { conclude } from "./trial.ts";
import type { Line } from "./wire.ts";

const rounds = isLong ? 10 : 1;
const lines: readonly Line[] = ["reset", "forget", "nothing passes", "no commands pass", "no answers pass"];

test("F5 Redis that stands still for less than a lease ends no call", async () => {
  const system = await startSystem({ leaseMs: 3_000 });
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

test("F5 Redis that stands still for longer than a lease: what ran is stopped, and nothing runs twice", async () => {
  const system = await startSystem({ leaseMs: 3_000 });
  const hosts = createHosts(system);
  const stop = new AbortController();
  const working = work(hosts, 6, stop.signal);
  for (let round = 0; round < rounds; round += 1) {
    await delay(500);
    const thaw = await system.freezeRedis();
    await delay(6_000);
    thaw();
    await delay(1_000);
  }
  stop.abort();
  const parts = await working;
  await conclude(system, hosts, { fault: "F5 Redis frozen 6 s", faults: rounds, seen: endsOf(parts) });
});

const both = ["one", "all"] as const;

test.each([
  { long: "less", cutMs: 1_200, replicas: isLong ? both : both.slice(1) },
  { long: "more", cutMs: 3_500, replicas: isLong ? both : both.slice(0, 1) },
])("F6 asks outlive every cut of the line to Redis that takes $long than a lease", async ({ cutMs, replicas }) => {
  const system = await startSystem();
  const hosts = createHosts(system);
  const sessionId = await hosts.newSession();
  const ends: ToolPart[] = [];
  let faults = 0;
  for (const line of Array.from({ length: rounds }, () => lines).flat()) {
    for (const many of replicas) {
      const cut = Promise.withResolvers<void>();
      // Half of the answers come while the line is cut, half afterwards.
      const calls = [100, 400, cutMs + 100, cutMs + 700].map((answerMs, index) => {
        const asked = Promise.withResolvers<void>();
        const beforeAnswer = async () => {
          asked.resolve();
          await cut.promise;
          await delay(answerMs);
        };
        const callId = `c${faults}-${index}`;
        return { asked: asked.promise, ended: hosts.call({ sessionId, callId, at: 0, asks: true, beforeAnswer }) };
      });
      await Promise.all(calls.map(({ asked, ended }) => Promise.race([asked, ended])));
      if (many === "all") system.setLines(line);
      else system.at(0).wire.set(line);
      cut.resolve();
      await delay(cutMs);
      system.setLines("open");
      const parts = await Promise.all(calls.map(({ ended }) => ended));
      expect.soft(`${line}, ${many}: ${endsOf(parts)}`).toBe(`${line}, ${many}: ${parts.length} completed`);
      ends.push(...parts);
      faults += 1;
    }
  }
  await conclude(system, hosts, { fault: `F6 line cut ${cutMs} ms, asks open`, faults, seen: endsOf(ends) });
});

test("F6 lines that are cut again and again under load: nothing is lost, nothing runs twice", async () => {
  const system = await startSystem();
  const hosts = createHosts(system);
  const stop = new AbortController();
  const working = work(hosts, 6, stop.signal);
  let faults = 0;
  for (let round = 0; round < 2 * rounds; round += 1) {
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

test("F7 a step whose answer was lost is done once", async () => {
  const system = await startSystem();
  const hosts = createHosts(system);
  for (const { wire } of system.replicas) wire.loseAnswers(60);
  const stop = new AbortController();
  const working = work(hosts, 6, stop.signal);
  await delay(isLong ? 120_000 : 8_000);
  stop.abort();
  const parts = await working;
  for (const { wire } of system.replicas) wire.loseAnswers(0);
  const lost = system.replicas.reduce((sum, { wire }) => sum + wire.lost, 0);
  expect(lost).toBeGreaterThan(20);
  expect(endsOf(parts)).toBe(`${parts.length} completed`);
  await conclude(system, hosts, { fault: "F7 each 60th answer of Redis lost", faults: lost, seen: endsOf(parts) });
});
