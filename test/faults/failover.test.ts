import { expect, onTestFinished, test, vi } from "vitest";
import {
  type CopiedServers,
  type Failover,
  startClusterWithCopies,
  startSentinelWithCopies,
} from "../store/redis-failover.ts";
import { violations } from "./checker.ts";
import { withoutReported, workThroughFailovers } from "./failover-load.ts";
import { createHosts } from "./hosts.ts";
import { endsOf } from "./load.ts";
import { isLong, report } from "./report.ts";
import { startSystem } from "./system.ts";

/** Fails masters over under load, one failover after the other; returns the violations. */
async function failOverUnderLoad(servers: CopiedServers, fault: string, kinds: readonly Failover[]): Promise<string[]> {
  onTestFinished(servers.stop);
  const system = await startSystem({ store: servers.url, leaseMs: 6_000 });
  const hosts = createHosts(system, { mayLose: true });
  const stop = new AbortController();
  const working = workThroughFailovers(hosts, 6, stop.signal);
  working.catch(() => stop.abort());
  const untilBusy = (ended = hosts.ended) =>
    Promise.race([vi.waitUntil(() => hosts.ended >= ended + 24, { timeout: 150_000 }), working]);
  for (const kind of kinds) {
    await untilBusy();
    await servers.failOver(kind);
    await servers.settle();
  }
  await untilBusy();
  stop.abort();
  const { ends, reported } = await working;
  await vi.waitUntil(async () => (await system.children()).length === 0, { timeout: 60_000 });
  // A session that no host went back to has to report its loss as well.
  for (const sessionId of await hosts.changedSessions()) reported.add(sessionId);
  const history = await hosts.finish();
  const found = violations(withoutReported(history, reported));
  report({
    ...{ fault, faults: kinds.length, calls: history.calls.length, answers: history.answers.length },
    runs: history.ledger.filter(({ word }) => word === "start").length,
    violations: found.length,
    seen: `${endsOf(ends)}; ${reported.size} sessions STORE_CHANGED`,
  });
  return found;
}

/** Returns the failovers of a run: the given one, and in the long run four times each kind. */
const failovers = (short: Failover): Failover[] =>
  isLong ? Array.from({ length: 4 }, (): Failover[] => ["planned", "kill", "freeze"]).flat() : [short];

test("F0 Sentinel with one copy: no failover makes a call run twice, an ask have two winners, or loses work unreported", async () => {
  const servers = await startSentinelWithCopies(1);
  expect(await failOverUnderLoad(servers, "F0 Sentinel, one copy", failovers("planned"))).toEqual([]);
});

test("F0 Sentinel with two copies: the same holds, and calls go on while one of three servers is away", async () => {
  const servers = await startSentinelWithCopies(2);
  expect(await failOverUnderLoad(servers, "F0 Sentinel, two copies", failovers("kill"))).toEqual([]);
});

test("F0 Cluster: the same holds for each of its masters", async () => {
  const servers = await startClusterWithCopies();
  expect(await failOverUnderLoad(servers, "F0 Cluster, a copy for each master", failovers("freeze"))).toEqual([]);
});
