import type { Goal } from "../goals.ts";
import { measure } from "../load.ts";
import type { Processes } from "../processes.ts";
import { percentile, spread, table } from "../report.ts";
import { type RoundsPlan, ratios, runRounds } from "../rounds.ts";
import { type Engine, startEngines } from "./engines.ts";

/** Measures a durable call and a wait for a person's answer beside engines that do the same job, in turn. */
export async function measureDurable(
  processes: Processes,
  plan: RoundsPlan,
  print: (text: string) => void,
): Promise<Goal[]> {
  const engines = await startEngines(processes);
  const waits = new Map(engines.map((engine) => [engine, { cpu: [] as number[], p50: [] as number[] }]));
  const samples = await runRounds(engines, plan, async (engine) => {
    const { wait } = engine;
    if (wait === undefined) return;
    const ofWait = { pids: engine.pids, echo: async () => void (await wait()) };
    waits.get(engine)?.cpu.push((await measure(ofWait, { ms: plan.ms })).cpuPerCall / 1_000);
    const times: number[] = [];
    await measure({ pids: [], echo: async () => void times.push(await wait()) }, { ms: plan.ms }, 1);
    waits.get(engine)?.p50.push(percentile(times, 0.5));
  });
  await processes.stopAll();
  const of = (engine: Engine) => ({
    label: engine.label,
    rate: samples.get(engine)?.map(({ callsPerSecond }) => callsPerSecond) ?? [],
    cpu: samples.get(engine)?.map(({ cpuPerCall }) => cpuPerCall) ?? [],
    wait: waits.get(engine) ?? { cpu: [], p50: [] },
  });
  const all = engines.map(of);
  const [ours, control, , restate] = all;
  if (ours === undefined || control === undefined || restate === undefined) throw new Error("no engines");
  print(
    `Median (min–max) of ${plan.rounds} rounds of ${plan.ms / 1_000} s each: an echo of 1 KiB and a wait, each with 16 open, and a wait with one open. CPU is that of all processes of the engine, the handlers and PostgreSQL included. Another client answers as soon as the call waits: a permission request here, an awakeable of Restate, \`recv\` of DBOS.`,
  );
  const figures = (values: readonly number[], digits: number) => (values.length > 0 ? spread(values, digits) : "");
  print(
    table(
      ["", "calls/s", "CPU µs/call", "CPU ms/wait", "answer → result, p50 ms"],
      all.map(({ label, rate, cpu, wait }) => [
        ...[label, spread(rate), spread(cpu), figures(wait.cpu, 1), figures(wait.p50, 1)],
      ]),
    ),
  );
  print(
    table(
      ["÷ Toolgate", "CPU of a call", "CPU of a wait", "answer → result"],
      all
        .slice(1)
        .map(({ label, cpu, wait }) => [
          label,
          spread(ratios(cpu, ours.cpu), 2),
          figures(ratios(wait.cpu, ours.wait.cpu), 2),
          figures(ratios(wait.p50, ours.wait.p50), 2),
        ]),
    ),
  );
  return [
    {
      figure: "answer → result ÷ Restate's awakeable, p50",
      limit: 1,
      unit: "×",
      values: ratios(ours.wait.p50, restate.wait.p50),
      control: ratios(control.wait.p50, ours.wait.p50),
    },
  ];
}
