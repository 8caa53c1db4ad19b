import { mkdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { callNamed, openSession } from "../echoes.ts";
import type { Goal } from "../goals.ts";
import { cpuTimeOf, measure, type Target } from "../load.ts";
import type { Processes } from "../processes.ts";
import { startRedis } from "../redis.ts";
import { spread, table } from "../report.ts";
import { type RoundsPlan, ratios } from "../rounds.ts";
import { startToolgate } from "../toolgate.ts";

/**
 * Calls one replica, two, and three, all in the one Redis, each with a separate client and session, in turn; and three services that share
 * nothing but the machine.
 */
export async function measureRates(
  processes: Processes,
  { warmUp, rounds, ms }: RoundsPlan,
  print: (text: string) => void,
): Promise<Goal[]> {
  const redis = await startRedis(processes);
  const echoes: Target[] = [];
  const repeats: Target[] = [];
  const apart: Target[] = [];
  const redises = [];
  for (const index of [0, 1, 2]) {
    const replica = await startReplica(processes, `rates-${index}`, redis.url);
    echoes.push(await replica("echo"));
    repeats.push(await replica(twoSteps));
    const own = await startRedis(processes);
    const alone = await startReplica(processes, `rates-apart-${index}`, own.url);
    apart.push(await alone("echo"));
    redises.push(own.pid);
  }
  for (const target of [...echoes, ...repeats, ...apart]) await measure(target, { calls: warmUp });
  const setup = (label: string, targets: readonly Target[], pids: readonly number[] = [redis.pid]) => ({
    ...{ label, targets, pids, rate: [] as number[], replicas: [] as number[], redis: [] as number[] },
  });
  const setups = [
    setup("1", echoes.slice(0, 1)),
    setup("1, the control", echoes.slice(1, 2)),
    setup("1, calls recorded before they run", repeats.slice(0, 1)),
    setup("2", echoes.slice(0, 2)),
    setup("3", echoes),
    setup("1, apart", apart.slice(0, 1), redises.slice(0, 1)),
    setup("3, apart: each with its own Redis", apart, redises),
  ];
  for (let round = 0; round < rounds; round += 1) {
    for (const { targets, pids, ...into } of round % 2 === 0 ? setups : setups.toReversed()) {
      const before = cpuTimeOf(pids);
      const samples = await Promise.all(targets.map((each) => measure(each, { ms })));
      const calls = sum(samples.map((sample) => sample.calls));
      into.rate.push(sum(samples.map(({ callsPerSecond }) => callsPerSecond)));
      into.replicas.push(sum(samples.map((sample) => sample.cpuPerCall * sample.calls)) / calls);
      into.redis.push((cpuTimeOf(pids) - before) / calls);
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

/** Starts one, with a tool that returns its text, whose calls are recorded before they run; resolves to what calls a tool in a new session. */
async function startReplica(
  processes: Processes,
  name: string,
  store: string,
): Promise<(tool: string) => Promise<Target>> {
  const folder = join(processes.folder, name);
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
  const { server, connect } = await startToolgate(processes, { name, store, rules: `${twoSteps} = "allow"\n` });
  const client = connect("caller");
  return async (tool) => ({ pids: [server.pid], echo: await callNamed(tool)(client, await openSession(client)) });
}

function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0);
}
