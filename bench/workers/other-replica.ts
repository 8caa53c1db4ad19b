import { join } from "node:path";
import { grpcNamed, openSession } from "../echoes.ts";
import type { Goal } from "../goals.ts";
import { measure, timesOf } from "../load.ts";
import type { Processes } from "../processes.ts";
import { startRedis } from "../redis.ts";
import { percentile, spread, table } from "../report.ts";
import { type RoundsPlan, ratios } from "../rounds.ts";
import { startToolgate } from "../toolgate.ts";
import { startWorker, workerPrograms, workerTokens } from "./programs.ts";

const bytes = 200;

/** Calls two replicas on one Redis, of which one has the worker: measures what the way to the worker adds. */
export async function measureOtherReplica(
  processes: Processes,
  { warmUp, rounds, ms }: RoundsPlan,
  print: (text: string) => void,
): Promise<Goal[]> {
  const redis = await startRedis(processes);
  const program = workerPrograms(processes.folder).at(-1);
  if (program === undefined) throw new Error("there is no worker");
  const { label, tool } = program;
  const main = join(import.meta.dirname, "local-tool.ts");
  const start = (name: string) =>
    startToolgate(processes, {
      ...{ name, main, store: redis.url, settings: workerTokens(), rules: `repeat = "allow"\n${tool} = "allow"\n` },
    });
  const [a, b] = [await start("worker-elsewhere"), await start("worker-here")];
  await startWorker(processes, program.command(), b.server.url);
  const kinds = await Promise.all(
    [
      { label: "local tool", service: a, tool: "repeat" },
      { label: "local tool, the control", service: b, tool: "repeat" },
      { label: "worker at this replica", service: b, tool },
      { label: "worker at the other replica", service: a, tool },
    ].map(async ({ label, service, tool }) => {
      const client = service.connect("caller");
      return { label, echo: grpcNamed(tool, bytes)(client, await openSession(client)), p50: [] as number[] };
    }),
  );
  for (const { echo } of kinds) await measure({ pids: [], echo }, { calls: warmUp });
  for (let round = 0; round < rounds; round += 1) {
    for (const { echo, p50 } of kinds) p50.push(percentile(await timesOf(echo, ms), 0.5));
    kinds.reverse();
  }
  if (rounds % 2 === 1) kinds.reverse();
  await processes.stopAll();
  const [local, control] = kinds;
  const added = (values: readonly number[]) => values.map((value, round) => value - (local?.p50[round] ?? Number.NaN));
  print(
    `Two replicas on one Redis, a worker in ${label} at one of them, one call at a time, ${rounds} rounds of ${ms / 1_000} s.`,
  );
  print(
    table(
      ["", "p50 ms", "p50 − local, ms"],
      kinds.map(({ label, p50 }) => [label, spread(p50, 2), spread(added(p50), 2)]),
    ),
  );
  return [
    {
      ...{ figure: "a worker at another replica − a local tool, p50", limit: 2.5, unit: "ms" },
      values: added(kinds.at(-1)?.p50 ?? []),
      control: ratios(control?.p50 ?? [], local?.p50 ?? []),
    },
  ];
}
