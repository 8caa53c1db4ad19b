import { readdir } from "node:fs/promises";
import { setTimeout as delay } from "node:timers/promises";
import { expect, test, vi } from "vitest";
import { createHosts } from "./hosts.ts";
import { endsOf, work } from "./load.ts";
import { isLong } from "./report.ts";
import { longLeaseMs, startSystem } from "./system.ts";
import { conclude } from "./trial.ts";

const rounds = isLong ? 10 : 1;

test("F15 replicas are restarted one after the other under load, and no call fails", async () => {
  const system = await startSystem({ leaseMs: longLeaseMs });
  const hosts = createHosts(system);
  const stop = new AbortController();
  const working = work(hosts, 6, stop.signal);
  const exits: (number | null)[] = [];
  for (let round = 0; round < rounds; round += 1) {
    for (const replica of system.replicas) {
      await delay(500);
      exits.push(await replica.stop());
      await replica.start();
    }
  }
  stop.abort();
  const parts = await working;
  expect(exits).toEqual(exits.map(() => 0));
  expect(endsOf(parts)).toBe(`${parts.length} completed`);
  await conclude(system, hosts, { fault: "F15 rolling restarts", faults: exits.length, seen: endsOf(parts) });
});

test("I10 after the load there are as many open files as before it, and no processes", async () => {
  // One replica gets all calls, so that a leak of one file a call exceeds the number of pipes.
  const system = await startSystem({ count: 1 });
  const hosts = createHosts(system);
  const openFiles = () =>
    Promise.all(system.replicas.map(async ({ pid }) => (await readdir(`/proc/${pid}/fd`)).length));
  const run = async (calls: number) => {
    const stop = new AbortController();
    const all = hosts.ended + calls;
    const working = work(hosts, 6, stop.signal);
    await vi.waitUntil(() => hosts.ended >= all, { timeout: 240_000 });
    stop.abort();
    await working;
  };
  // The first calls open long-lived files: connections of clients, supervisors, the log.
  await run(40);
  const before = await openFiles();
  await run(isLong ? 600 : 100);
  // Pipes are created ahead, up to 32 at once, so their number varies; a leak would add one per call.
  const most = before.map((files) => files + 34);
  await vi.waitUntil(async () => (await openFiles()).every((now, index) => now <= (most[index] ?? 0)), {
    timeout: 60_000,
  });
  await conclude(system, hosts, { fault: "I10 load, then rest", faults: 0, seen: `${before.join(", ")} open files` });
});
