import { copyFile, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import type { CopiedServers } from "../store/redis-failover.ts";
import { arm, diskFaults } from "./io/control.ts";
import { isLong } from "./report.ts";
import type { Replica, System } from "./system.ts";
import type { Line } from "./wire.ts";

/** A fault that lasts until it is healed. */
export interface Fault {
  name: string;
  /** Milliseconds that it lasts at most. */
  maxMs: number;
  /** Begins it, and returns what heals it. */
  begin(random: Random): Promise<Heal>;
}

type Heal = () => Promise<unknown>;

/** Draws a whole number below a limit. */
export type Random = (below: number) => number;

/** Creates the same draws for the same seed. */
export function createRandom(seed: number): Random {
  let state = seed >>> 0;
  return (below) => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return Math.floor((state / 2 ** 32) * below);
  };
}

/** Faults of which one happens at a time, by kind. */
export type Lane = readonly (readonly Fault[])[];

/**
 * Injects `count` faults at random in each lane, until the signal: one after the other in a lane, lanes at the same time. Waits for
 * `pause` between them. Heals each, also after the signal. Returns their names in the order in which they began.
 */
export async function injectFaults(
  lanes: readonly Lane[],
  { seed, count, pause, stop }: { seed: number; count: number; pause: () => Promise<unknown>; stop: AbortSignal },
): Promise<string[]> {
  const injected: string[] = [];
  const run = async (kinds: Lane, lane: number) => {
    const random = createRandom(seed + lane * 7_919);
    for (const { name, maxMs, begin } of drawFaults(kinds, count, random)) {
      const lastsMs = 100 + random(maxMs - 100);
      await pause();
      if (stop.aborted) return;
      injected.push(name);
      const heal = await within(`the fault "${name}" to begin`, begin(random));
      await delay(lastsMs);
      await within(`the fault "${name}" to be healed`, heal());
    }
  };
  await Promise.all(lanes.map(run));
  return injected;
}

/** Draws faults; no kind comes twice before each has come once. */
function drawFaults(kinds: Lane, count: number, random: Random): Fault[] {
  const drawn: Fault[] = [];
  while (drawn.length < count) {
    const left = [...kinds];
    while (left.length > 0) {
      const [faults = []] = left.splice(random(left.length), 1);
      drawn.push(...faults.slice(random(faults.length)).slice(0, 1));
    }
  }
  return drawn.slice(0, count);
}

/** Only what hangs takes so long. The long run may have a busy machine. */
export const maxWaitMs = isLong ? 900_000 : 100_000;

/** Returns the result of a step; fails with a message that names the step if it takes too long. */
export async function within<T>(what: string, step: Promise<T>): Promise<T> {
  const late = new AbortController();
  const limit = delay(maxWaitMs, undefined, { signal: late.signal }).then(() => {
    throw new Error(`waited ${maxWaitMs / 1_000} s for ${what}`);
  });
  limit.catch(() => undefined);
  return await Promise.race([step, limit]).finally(() => late.abort());
}

/**
 * Faults of Redis with copies: a master is moved, killed or frozen; any server freezes for a moment. Each ends with `recover`: while
 * failovers follow each other without a pause, replicas agree on histories and do nothing else.
 */
export function faultsOfServers(servers: CopiedServers, recover: Heal): Lane {
  const settle = async () => {
    await servers.settle();
    await recover();
  };
  const failovers = (["planned", "kill", "freeze"] as const).map((kind) => ({
    name: `failover: ${kind}`,
    maxMs: 500,
    async begin() {
      await servers.failOver(kind);
      return settle;
    },
  }));
  const freeze: Fault = {
    name: "a server of Redis freezes",
    maxMs: 1_500,
    async begin(random) {
      const port = servers.ports[random(servers.ports.length)] ?? 0;
      servers.signal(port, "SIGSTOP");
      return async () => {
        servers.signal(port, "SIGCONT");
        await settle();
      };
    },
  };
  const { join, changeSentinel } = servers;
  const members: Fault = {
    name: "a copy joins, and another leaves",
    maxMs: 1_500,
    async begin() {
      const leave = await join?.();
      return async () => {
        await leave?.();
        await recover();
      };
    },
  };
  const sentinels: Fault = {
    name: "a sentinel joins, the other leaves and returns after a failover without it",
    maxMs: 1_500,
    async begin() {
      const leave = await changeSentinel?.();
      return async () => {
        await leave?.();
        await recover();
      };
    },
  };
  return [failovers, [freeze], ...(isLong ? [[members], [sentinels]] : [])];
}

/** Sets a Redis without copies back to a dump that was written long enough before, and a database to its files of before. */
export function faultOfRestore(system: System, store: "redis" | "sqlite", recover: Heal): Fault {
  const service = system.at(0);
  return {
    name: `restore: ${store}`,
    maxMs: 500,
    async begin() {
      const folder = await mkdtemp(join(tmpdir(), "toolgate-restore-"));
      if (store === "redis") await system.redis.save();
      else await whileStopped(service, () => copyDatabase(service.data, folder));
      // A replica notices what it knows for certain.
      await delay(20_000);
      return async () => {
        if (store === "redis") await system.emptyRedis();
        else await whileStopped(service, () => copyDatabase(folder, service.data));
        await rm(folder, { recursive: true });
        await recover();
      };
    },
  };
}

async function whileStopped(service: Replica, work: () => Promise<void>): Promise<void> {
  await service.stop();
  await work();
  await startedAgain(service);
}

async function copyDatabase(from: string, to: string): Promise<void> {
  for (const name of ["toolgate.sqlite", "toolgate.sqlite-wal"]) {
    await rm(join(to, name), { force: true });
    await copyFile(join(from, name), join(to, name)).catch(() => undefined);
  }
}

/** Faults of the process of a replica. */
export function faultsOfProcess(replica: Replica): Fault[] {
  const startAgain = () => startedAgain(replica);
  return [
    {
      name: "kill -9",
      maxMs: 500,
      async begin() {
        await replica.kill();
        return startAgain;
      },
    },
    {
      name: "stop",
      maxMs: 300,
      async begin() {
        await replica.stop();
        return startAgain;
      },
    },
    {
      name: "freeze",
      maxMs: 3_000,
      async begin() {
        replica.signal("SIGSTOP");
        return async () => replica.signal("SIGCONT");
      },
    },
  ];
}

const lines: readonly Line[] = ["reset", "forget", "nothing passes", "no commands pass", "no answers pass"];

/** A change of a tool's definition at a replica, by `change` of its source. Calls that wait for a person meet it. */
export function faultOfDefinition(replica: Replica, change: () => Promise<void>): Fault {
  return {
    name: "the definition of a tool changes",
    maxMs: 500,
    async begin() {
      await replica.stop();
      await change();
      return () => startedAgain(replica);
    },
  };
}

/** Faults between a replica and its store. */
export function faultsOfLine({ wire }: Replica): Fault[] {
  const open = async () => wire.set("open");
  return [
    ...lines.map((line) => ({
      name: `partition: ${line}`,
      maxMs: 3_000,
      async begin() {
        wire.set(line);
        return open;
      },
    })),
    {
      name: "answers of Redis are lost",
      maxMs: 2_000,
      async begin(random) {
        wire.loseAnswers(20 + random(60));
        return async () => wire.loseAnswers(0);
      },
    },
  ];
}

/** A jump of the clock of one process, whose file says how far it is off; it stays so until the next one. */
export function faultOfClock(file: string): Fault {
  const offsets = ["+10y", "-10y", "+1h", "-1h", "+40d", "-3s", "+20s", "+0"];
  return {
    name: "the clock jumps",
    maxMs: 500,
    async begin(random) {
      await writeFile(file, `${offsets[random(offsets.length)]}\n`);
      return async () => undefined;
    },
  };
}

/** Faults of the disk below the database of a service that runs under io/preload.c, by its file. */
export function faultsOfDisk(control: string): Fault[] {
  return diskFaults.map(([name, kind]) => ({
    name: `a write ${name}`,
    maxMs: 1_000,
    async begin(random) {
      arm(control, 1 + random(8), kind);
      return async () => arm(control, 0, kind);
    },
  }));
}

/** Starts a replica until it stays, as a supervisor does: its store may be away. */
async function startedAgain(replica: Replica): Promise<void> {
  for (;;) {
    const isStarted = await replica.start().then(
      () => true,
      () => false,
    );
    if (isStarted) return;
    await delay(200);
  }
}
