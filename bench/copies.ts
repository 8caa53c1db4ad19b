import { setTimeout as delay } from "node:timers/promises";
import { callNamed, openSession } from "./echoes.ts";
import { cpuTimeOf, measure, type Target, timesOf } from "./load.ts";
import { freePort, type Processes } from "./processes.ts";
import { type RedisServer, startRedis } from "./redis.ts";
import { percentile, spread, table } from "./report.ts";
import { startToolgate } from "./toolgate.ts";

/** A setup: how many copies a Redis has, and whether calls wait for them. */
const setups = [
  { label: "no copy", copies: 0, isStrict: false },
  { label: "one copy, not strict", copies: 1, isStrict: false },
  { label: "one copy, strict", copies: 1, isStrict: true },
  { label: "two copies, not strict", copies: 2, isStrict: false },
  { label: "two copies, strict", copies: 2, isStrict: true },
] as const;

/** Measures what it costs to acknowledge only what copies of Redis have: the same calls at each setup, in turn. */
export async function measureCopies(
  processes: Processes,
  { warmUp, rounds, ms }: { warmUp: number; rounds: number; ms: number },
  print: (text: string) => void,
): Promise<void> {
  const running: Running[] = [];
  for (const setup of setups) running.push(await start(processes, setup));
  for (const { target } of running) await measure(target, { calls: warmUp });
  for (let round = 0; round < rounds; round += 1) {
    for (const { target, redisPids, samples, redisCpu, p50 } of running) {
      await measure(target, { ms: ms / 2 });
      const before = cpuTimeOf(redisPids);
      const sample = await measure(target, { ms });
      samples.push(sample);
      redisCpu.push((cpuTimeOf(redisPids) - before) / sample.calls);
      p50.push(percentile(await timesOf(target.echo, ms), 0.5));
    }
    running.reverse();
  }
  await processes.stopAll();
  print(
    `Median (min–max) of ${rounds} rounds of ${ms / 1_000} s each: an echo of 1 KiB through one replica, stored in one step; Redis and its copies on this machine, with \`appendfsync everysec\`. Rate and CPU with 16 calls open at a time, p50 with one.`,
  );
  const inOrder = setups
    .map(({ label }) => running.find((one) => one.label === label))
    .filter((one) => one !== undefined);
  const row = ({ label, samples, redisCpu, p50 }: Running) => [
    label,
    spread(p50, 2),
    spread(samples.map(({ callsPerSecond }) => callsPerSecond)),
    spread(samples.map(({ cpuPerCall }) => cpuPerCall)),
    spread(redisCpu),
  ];
  print(table(["", "p50 ms", "calls/s", "service CPU µs/call", "Redis and copies CPU µs/call"], inOrder.map(row)));
}

interface Running {
  readonly label: string;
  readonly target: Target;
  readonly redisPids: readonly number[];
  readonly samples: Awaited<ReturnType<typeof measure>>[];
  readonly redisCpu: number[];
  readonly p50: number[];
}

async function start(processes: Processes, { label, copies, isStrict }: (typeof setups)[number]): Promise<Running> {
  const port = await freePort();
  const master = await startRedis(processes, { port });
  const others: RedisServer[] = [];
  for (let count = 0; count < copies; count += 1) others.push(await startRedis(processes, { copyOf: port }));
  while (!(await master.client.info("replication")).includes(`connected_slaves:${copies}`)) await delay(50);
  await master.client.set("copied", "");
  await master.client.wait(copies, 0);
  const name = label.replace(/\W+/g, "-");
  const { server, connect } = await startToolgate(processes, {
    ...{ name, store: master.url, storeStrict: isStrict },
  });
  const client = connect("caller");
  const echo = callNamed("echo")(client, await openSession(client));
  const redisPids = [master, ...others].map(({ pid }) => pid);
  return { label, target: { pids: [server.pid], echo }, redisPids, samples: [], redisCpu: [], p50: [] };
}
