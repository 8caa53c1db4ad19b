import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { Redis } from "ioredis";
import { expect, onTestFinished, test, vi } from "vitest";
import { seed as fixedSeed } from "../seed.ts";
import { type CopiedServers, hurrySentinel, startSentinelWithCopies } from "../store/redis-failover.ts";
import type { Break } from "./broken-store.ts";
import { stopMs, violations } from "./checker.ts";
import { type FailoverWork, withoutReported, workThroughFailovers } from "./failover-load.ts";
import { fakeTime } from "./fake-time.ts";
import type { History } from "./history.ts";
import { createHosts, type Hosts } from "./hosts.ts";
import { buildPreload } from "./io/control.ts";
import { endsOf, inParallel } from "./load.ts";
import {
  faultOfClock,
  faultOfDefinition,
  faultOfRestore,
  faultsOfDisk,
  faultsOfLine,
  faultsOfProcess,
  faultsOfServers,
  injectFaults,
  type Lane,
  maxWaitMs,
  within,
} from "./nemesis.ts";
import { entryOf } from "./releases.ts";
import { isLong, report } from "./report.ts";
import { startSentinelWire } from "./sentinel-wire.ts";
import { type System, startSystem } from "./system.ts";
import { holdsWithin } from "./trial.ts";

/** The long run draws another seed each time. */
const seed = isLong && process.env.TOOLGATE_SEED === undefined ? Date.now() % 1_000_000 : fixedSeed;

/** Describes bash in other words, or in those of before, so that calls that wait are asked for again. */
function changeWords(text: string): string {
  const [first, other] = ["Background processes end with the command.", "They end with the command."];
  return text.includes(first) ? text.replace(first, other) : text.replace(other, first);
}

/** Replicas and what can happen to them, in lanes of one fault at a time. */
interface Target {
  system: System;
  hosts: Hosts;
  lanes: readonly Lane[];
}

/** Three replicas on a Redis with Sentinel and two copies. Each replica has its own lines to it, and its own clock. */
async function startOnRedis({ leaseMs = 4_000, breaks = [] as readonly Break[] } = {}): Promise<Target> {
  const servers = await startSentinelWithCopies(2);
  onTestFinished(servers.stop);
  await hurry(servers);
  const clocks = await Promise.all([0, 1, 2].map(newClock));
  // Definitions differ in words between replicas, as in a rolling upgrade.
  const tool = "src/tools/bash.ts";
  const entry = isLong && breaks.length === 0 ? await entryOf("HEAD", { [tool]: changeWords }) : undefined;
  const system = await startSystem({
    leaseMs,
    breaks: breaks.length > 0 ? [breaks, breaks, breaks] : [],
    openWire: () => startSentinelWire(servers),
    // Otherwise a count that finds a copy away lets one copy be enough.
    settings: "store_copies = 2",
    entries: [undefined, entry],
    env: clocks.map((FAKETIME_TIMESTAMP_FILE) => ({ ...fakeTime(), FAKETIME_TIMESTAMP_FILE })),
  });
  const replicas = system.replicas.map((replica, index) => [
    faultsOfProcess(replica),
    faultsOfLine(replica),
    [faultOfClock(clocks[index] ?? "")],
    ...(entry !== undefined && index === 1
      ? [[faultOfDefinition(replica, () => changeFile(join(dirname(entry), "..", tool), changeWords))]]
      : []),
  ]);
  const hosts = createHosts(system, { mayLose: true });
  return { system, hosts, lanes: [faultsOfServers(servers, () => someCalls(hosts)), ...replicas] };
}

async function changeFile(file: string, change: (text: string) => string): Promise<void> {
  await writeFile(file, change(await readFile(file, "utf8")));
}

/** Has the sentinel act faster than it does by itself. */
async function hurry({ url }: CopiedServers): Promise<void> {
  const { hostname: host, port } = new URL(url);
  const sentinel = new Redis({ host, port: Number(port) });
  await hurrySentinel(sentinel);
  sentinel.disconnect();
}

/** A service with a database, on a disk that fails. */
async function startOnDisk(): Promise<Target> {
  const folder = await newFolder();
  const control = join(folder, "control");
  await writeFile(control, Buffer.alloc(16));
  const env = { LD_PRELOAD: buildPreload(folder), FAULT_CONTROL: control };
  const system = await startSystem({ store: "sqlite", count: 1, leaseMs: 4_000, env: [env] });
  const service = system.at(0);
  const lanes = [[faultsOfProcess(service)], [faultsOfDisk(control)]];
  return { system, hosts: createHosts(system), lanes };
}

/** Services whose store is set back to an earlier state now and then; those on Redis are killed meanwhile. */
async function startOnRestored(store: "redis" | "sqlite"): Promise<Target> {
  const system = await startSystem(store === "sqlite" ? { store, count: 1 } : { count: 2 });
  const hosts = createHosts(system, { mayLose: true });
  const restored: Lane = [[faultOfRestore(system, store, () => someCalls(hosts))]];
  const killed = store === "redis" ? system.replicas.map((replica): Lane => [faultsOfProcess(replica)]) : [];
  return { system, hosts, lanes: [restored, ...killed] };
}

async function newFolder(): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), "toolgate-nemesis-"));
  onTestFinished(() => rm(folder, { recursive: true, force: true }));
  return folder;
}

async function newClock(): Promise<string> {
  const clock = join(await newFolder(), "clock");
  await writeFile(clock, "+0\n");
  return clock;
}

/** Works on a target while faults happen to it; they are healed at the end, and everything has to come to rest. */
async function torment({ system, hosts, lanes }: Target, fault: string, count: number): Promise<string[]> {
  const stop = new AbortController();
  const working = workThroughFailovers(hosts, 4, stop.signal, { isWatched: true, maxTicks: 12 });
  working.catch(() => stop.abort());
  const injected = await injectFaults(lanes, { seed, count, pause: () => someCalls(hosts), stop: stop.signal });
  // Otherwise a run shows less than its row says.
  if (isLong && !stop.signal.aborted) expect(kindsWithout(lanes, injected)).toEqual([]);
  const ended = hosts.ended;
  const goesOn = vi.waitUntil(() => hosts.ended >= ended + 8 || stop.signal.aborted, { timeout: maxWaitMs });
  await within("calls to end after the faults", goesOn);
  stop.abort();
  const work = await within("the last calls and watchers", working);
  // A session to which no host went back has to report its loss as well.
  for (const sessionId of await hosts.changedSessions()) work.reported.add(sessionId);
  const history = await rest(system, hosts);
  const found = violations(withoutReported(history, work.reported));
  note(fault, injected, { history, work, found });
  return found;
}

/** Lists the kinds of faults of which none was injected. */
function kindsWithout(lanes: readonly Lane[], injected: readonly string[]): string[][] {
  const kinds = lanes.flat().map((faults) => faults.map(({ name }) => name));
  return kinds.filter((names) => !names.some((name) => injected.includes(name)));
}

/** Lets a few calls end, for a time at most; while other faults last none may. */
async function someCalls(hosts: Hosts): Promise<void> {
  const enough = hosts.ended + 3;
  await holdsWithin(60_000, () => hosts.ended >= enough);
}

/** Waits until every replica is ready and no command is left; returns the history. */
async function rest(system: System, hosts: Hosts): Promise<History> {
  const isReady = async (url: string) => (await fetch(`${url}/readyz`)).status === 200;
  const ready = () => Promise.all(system.replicas.map(({ url }) => isReady(url).catch(() => false)));
  await within(
    "every replica to be ready",
    vi.waitUntil(async () => !(await ready()).includes(false), { timeout: maxWaitMs }),
  );
  const isQuiet = async () => (await system.children()).length === 0;
  await within("all commands to end", vi.waitUntil(isQuiet, { timeout: maxWaitMs }));
  return await within("the logs of all sessions", hosts.finish());
}

function note(
  fault: string,
  injected: readonly string[],
  { history, work, found }: { history: History; work: FailoverWork; found: readonly string[] },
): void {
  // The other target may fail first, and then nothing else shows them.
  for (const violation of found) console.log(`${fault}: ${violation}`);
  report({
    ...{ fault, faults: injected.length, calls: history.calls.length, answers: history.answers.length },
    runs: history.ledger.filter(({ word }) => word === "start").length,
    violations: found.length,
    seen: `seed ${seed}; ${endsOf(work.ends)}; ${work.reported.size} sessions STORE_CHANGED`,
  });
  const counts = [...Map.groupBy(injected, (name) => name)].map(([name, all]) => `${all.length} × ${name}`);
  console.log(`${fault}: ${counts.join(", ")}`);
}

test("Q7 kills, freezes, partitions, failovers, disks and clocks at random: nothing is lost, nothing runs twice", async () => {
  console.log(`nemesis with TOOLGATE_SEED=${seed}`);
  const [onRedis, onDisk] = await Promise.all([startOnRedis(), startOnDisk()]);
  const found = await Promise.all([
    torment(onRedis, "Q7 nemesis: Redis with Sentinel", isLong ? 60 : 3),
    torment(onDisk, "Q7 nemesis: a database", isLong ? 120 : 3),
  ]);
  expect(found.flat()).toEqual([]);
});

test.runIf(isLong)("Q7 stores that are set back to an earlier state: nothing runs twice unreported", async () => {
  const targets = await Promise.all([startOnRestored("redis"), startOnRestored("sqlite")]);
  const found = await Promise.all(
    targets.map((target, i) => torment(target, `Q7 nemesis: ${i ? "a database" : "Redis"} set back`, 6)),
  );
  expect(found.flat()).toEqual([]);
});

test.runIf(isLong)(
  "Q7 control: on replicas that do not watch their leases, the nemesis finds a command that runs on after the end of its call",
  async () => {
    const { system, hosts, lanes } = await startOnRedis({ leaseMs: 1_500, breaks: ["leases are not watched"] });
    const stop = new AbortController();
    const ends = new Map<string, number>();
    const working = inParallel([0, 1, 2, 3, 4, 5], 6, async (worker) => {
      while (!stop.signal.aborted) await longCall(hosts, worker, ends).catch(() => delay(200));
    });
    const isLate = async () =>
      (await hosts.ledger.lines()).some(({ callId, time }) => time > (ends.get(callId) ?? Infinity) + stopMs);
    const found = vi.waitUntil(isLate, { timeout: 240_000, interval: 200 }).finally(() => stop.abort());
    // Replicas that are killed take their commands with them, and would hide for minutes what partitions show.
    const [, ...replicas] = lanes.map(([_ofProcess, ...others]) => others);
    await Promise.all([
      found,
      injectFaults(replicas, { seed, count: 100, pause: () => delay(500), stop: stop.signal }),
    ]);
    await within("the last calls", working);
    expect(violations(await rest(system, hosts))).toEqual(expect.arrayContaining([expect.stringMatching(/^I9: /)]));
  },
);

/** Makes a call of 4 s in a new session, and notes when its end is acknowledged. */
async function longCall(hosts: Hosts, worker: number, ends: Map<string, number>): Promise<void> {
  const sessionId = await hosts.newSession(worker);
  const callId = `${sessionId.slice(-12)}-long`;
  await hosts.call({ sessionId, callId, at: worker, ticks: 80 });
  ends.set(callId, Date.now());
}
