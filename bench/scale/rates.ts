import { cpuTime } from "../cpu-time.ts";
import { callByConnect, openSession } from "../echoes.ts";
import { measure, type Target } from "../load.ts";
import type { Processes } from "../processes.ts";
import { startRedis } from "../redis.ts";
import { median, spread, table } from "../report.ts";
import { startToolgate } from "../toolgate.ts";

/** Rate and cost of a number of replicas together, for each round. */
export interface Rates {
  readonly callsPerSecond: number[];
  /** µs of CPU time per call, of the replica that runs it and those that hear of it. */
  readonly replicas: number[];
  readonly redis: number[];
}

/** Calls one replica, then two, then three, all in the one Redis, each with a separate client and session. */
export async function measureRates(
  processes: Processes,
  { warmUp, rounds, ms }: { warmUp: number; rounds: number; ms: number },
): Promise<Rates[]> {
  const redis = await startRedis(processes);
  const targets: Target[] = [];
  const all: Rates[] = [];
  while (targets.length < 3) {
    const { server, connect } = await startToolgate(processes, { name: `rates-${targets.length}`, store: redis.url });
    const client = connect("caller");
    const target = { pids: [server.pid], echo: callByConnect(client, await openSession(client)) };
    await measure(target, { calls: warmUp });
    targets.push(target);
    const rates: Rates = { callsPerSecond: [], replicas: [], redis: [] };
    for (let round = 0; round < rounds; round += 1) {
      const before = cpuTime(redis.pid);
      const samples = await Promise.all(targets.map((each) => measure(each, { ms })));
      const calls = sum(samples.map((sample) => sample.calls));
      rates.callsPerSecond.push(sum(samples.map(({ callsPerSecond }) => callsPerSecond)));
      rates.replicas.push(sum(samples.map((sample) => sample.cpuPerCall * sample.calls)) / calls);
      rates.redis.push((cpuTime(redis.pid) - before) / calls);
    }
    all.push(rates);
  }
  await processes.stopAll();
  return all;
}

/** The rates by number of replicas, and where one Redis would end. */
export function ratesReport(all: readonly Rates[]): string {
  const rows = all.map(({ callsPerSecond, replicas, redis }, index) => [
    String(index + 1),
    ...[callsPerSecond, replicas, redis].map((values) => spread(values)),
  ]);
  const redisLimit = 1_000_000 / median(all.flatMap(({ redis }) => redis));
  return [
    table(["replicas on one Redis", "durable calls/s", "replica CPU µs/call", "Redis CPU µs/call"], rows),
    `Replicas, Redis and client share the cores. A Redis with a core to itself is full at ${Math.round(redisLimit).toLocaleString("en")} calls/s.`,
  ].join("\n\n");
}

function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0);
}
