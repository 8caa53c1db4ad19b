import { mkdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { cpuTime } from "../cpu-time.ts";
import { callNamed, openSession } from "../echoes.ts";
import type { Goal } from "../goals.ts";
import { measure, type Target } from "../load.ts";
import type { Processes } from "../processes.ts";
import { startRedis } from "../redis.ts";
import { spread, table } from "../report.ts";
import { type RoundsPlan, ratios } from "../rounds.ts";
import { startToolgate } from "../toolgate.ts";

/** Calls one replica, two, and three, all in the one Redis, each with a separate client and session, in turn. */
export async function measureRates(
  processes: Processes,
  { warmUp, rounds, ms }: RoundsPlan,
  print: (text: string) => void,
): Promise<Goal[]> {
  const redis = await startRedis(processes);
  const echoes: Target[] = [];
  const repeats: Target[] = [];
  for (const name of ["rates-0", "rates-1", "rates-2"]) {
    await writeTwoSteps(join(processes.folder, name));
    const rules = `${twoSteps} = "allow"\n`;
    const { server, connect } = await startToolgate(processes, { name, store: redis.url, rules });
    const client = connect("caller");
    for (const [tool, targets] of [
      ["echo", echoes],
      [twoSteps, repeats],
    ] as const) {
      const target = { pids: [server.pid], echo: await callNamed(tool)(client, await openSession(client)) };
      await measure(target, { calls: warmUp });
      targets.push(target);
    }
  }
  const setup = (label: string, targets: readonly Target[]) => ({
    ...{ label, targets, rate: [] as number[], replicas: [] as number[], redis: [] as number[] },
  });
  const setups = [
    setup("1", echoes.slice(0, 1)),
    setup("1, the control", echoes.slice(1, 2)),
    setup("1, calls recorded before they run", repeats.slice(0, 1)),
    setup("2", echoes.slice(0, 2)),
    setup("3", echoes),
  ];
  for (let round = 0; round < rounds; round += 1) {
    for (const { targets, ...into } of round % 2 === 0 ? setups : setups.toReversed()) {
      const before = cpuTime(redis.pid);
      const samples = await Promise.all(targets.map((each) => measure(each, { ms })));
      const calls = sum(samples.map((sample) => sample.calls));
      into.rate.push(sum(samples.map(({ callsPerSecond }) => callsPerSecond)));
      into.replicas.push(sum(samples.map((sample) => sample.cpuPerCall * sample.calls)) / calls);
      into.redis.push((cpuTime(redis.pid) - before) / calls);
    }
  }
  await processes.stopAll();
  const rows = setups.map((one) => [one.label, spread(one.rate), spread(one.replicas), spread(one.redis)]);
  print(table(["replicas on one Redis", "durable calls/s", "replica CPU µs/call", "Redis CPU µs/call"], rows));
  const [once, again, twice, , three] = setups;
  if (once === undefined || again === undefined || twice === undefined || three === undefined)
    throw new Error("no setups");
  const control = ratios(again.redis, once.redis);
  const perCore = three.redis.map((micros) => 1_000_000 / micros);
  return [
    {
      figure: "durable calls a second that a core of Redis takes, of three replicas",
      ...{ limit: 4_000, unit: "/s", values: perCore, control, isLeast: true },
    },
    { figure: "a call recorded once, CPU of Redis", limit: 160, unit: "µs", values: once.redis, control },
    { figure: "a call recorded before it runs, CPU of Redis", limit: 230, unit: "µs", values: twice.redis, control },
    {
      figure: "three replicas ÷ one, CPU of the replicas for a call",
      // On cores of their own three then make 2.5 times the calls.
      ...{ limit: 1.2, unit: "×", values: ratios(three.replicas, once.replicas) },
      control: ratios(again.replicas, once.replicas),
    },
  ];
}

const twoSteps = "repeat";

/** Writes a tool that returns its text; its calls are recorded before they run. */
async function writeTwoSteps(folder: string): Promise<void> {
  await mkdir(join(folder, "tool"), { recursive: true });
  await writeFile(
    join(folder, "tool", `${twoSteps}.ts`),
    `export default {
  description: "Return the given text unchanged.",
  args: { text: { type: "string" } },
  execute: async ({ text }) => text,
};
`,
  );
}

function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0);
}
