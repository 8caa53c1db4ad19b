import { mkdtemp, readdir, rm, symlink } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { expect, onTestFinished, test, vi } from "vitest";
import { programEntry } from "../main.ts";
import { createHosts } from "./hosts.ts";
import { endsOf, work } from "./load.ts";
import { entryOf, releasesBefore } from "./releases.ts";
import { isLong } from "./report.ts";
import { longLeaseMs, type Replica, startSystem } from "./system.ts";
import { conclude } from "./trial.ts";

const rounds = isLong ? 11 : 2;

/**
 * Upgrades to this version. Replicas of the last release, or until it has the format of this version those of a commit, share a Redis with
 * new ones. 0.1.0 has another format, so that all of it stops first.
 */
const upgrades = [
  { before: releasesBefore("HEAD")[0] ?? "c5b0a1a3", store: "redis", how: "one after the other" },
  { before: "6343fc80", store: "sqlite", how: "all at once" },
  // The new replicas wait for the lapse of an announcement of 30 s.
  ...(isLong ? [{ before: "6343fc80", store: "redis", how: "all at once" }] : []),
];

test.each(upgrades)(
  "F15 $before on $store is upgraded $how under load with requests open, and no call fails",
  async ({ before, store, how }) => {
    const folder = await mkdtemp(join(tmpdir(), "toolgate-upgrade-"));
    onTestFinished(() => rm(folder, { recursive: true }));
    const entry = join(folder, "toolgate");
    await symlink(await entryOf(before), entry);
    const count = store === "sqlite" ? 1 : isLong ? 3 : 2;
    const entries = Array.from({ length: count }, () => entry);
    const system = await startSystem({ leaseMs: longLeaseMs, count, entries, ...(count === 1 && { store }) });
    const hosts = createHosts(system);
    const stop = new AbortController();
    const working = work(hosts, 6, stop.signal);
    const { promise: upgraded, resolve: upgrade } = Promise.withResolvers<void>();
    const asked = new Set<number>();
    const hold = async (at: number) => {
      const beforeAnswer = () => {
        asked.add(at);
        return upgraded;
      };
      return await hosts.call({
        sessionId: await hosts.newSession(at),
        callId: `held-${at}`,
        at,
        asks: true,
        beforeAnswer,
      });
    };
    const holding = Promise.all(Array.from({ length: 4 }, (_, at) => hold(at)));
    await vi.waitUntil(() => asked.size === 4 && hosts.ended >= 20, { timeout: 120_000 });

    await rm(entry);
    await symlink(programEntry(), entry);
    const exits: (number | null)[] = [];
    const restart = async (replicas: readonly Replica[]) => {
      await delay(500);
      exits.push(...(await Promise.all(replicas.map((replica) => replica.stop()))));
      await Promise.all(replicas.map((replica) => replica.start()));
    };
    const isRolling = how === "one after the other";
    const groups = isRolling ? system.replicas.map((replica) => [replica]) : [system.replicas];
    for (let round = 0; round < (isRolling ? rounds : 1); round += 1) {
      for (const group of groups) await restart(group);
      upgrade();
    }
    const endedBefore = hosts.ended;
    await vi.waitUntil(() => hosts.ended >= endedBefore + 20, { timeout: 120_000 });
    stop.abort();
    const parts = [...(await holding), ...(await working)];
    expect(exits).toEqual(exits.map(() => 0));
    expect(endsOf(parts)).toBe(`${parts.length} completed`);
    await conclude(system, hosts, {
      fault: `F15 upgrade of ${before} on ${store}, ${how}`,
      faults: exits.length,
      seen: endsOf(parts),
    });
  },
);

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
