import { ours, peers } from "./competitors.ts";
import type { Goal } from "./goals.ts";
import { type Target, timesOf } from "./load.ts";
import type { Processes } from "./processes.ts";
import { percentile, spread, table } from "./report.ts";
import { type RoundsPlan, ratios, runRounds } from "./rounds.ts";

/** Measures an echo by each way to call us, beside other servers, in turn. */
export async function measurePeers(
  processes: Processes,
  plan: RoundsPlan,
  print: (text: string) => void,
): Promise<Goal[]> {
  const running: (Target & { key: string; label: string; tails: number[] })[] = [];
  for (const { key, label, start } of [...ours, ...peers])
    running.push({ key, label, ...(await start(processes)), tails: [] });
  const samples = await runRounds(running, plan, async ({ key, echo, tails }) => {
    if (key !== "ours-call" && key !== "ours-control") return;
    const times = await timesOf(echo, plan.ms);
    tails.push(percentile(times, 0.99) / percentile(times, 0.5));
  });
  await processes.stopAll();
  const of = (wanted: string) => {
    const one = running.find(({ key }) => key === wanted);
    const measured = (one && samples.get(one)) ?? [];
    return { cpu: measured.map(({ cpuPerCall }) => cpuPerCall), measured, tails: one?.tails ?? [] };
  };
  const call = of("ours-call");
  print(
    `Median (min–max) of ${plan.rounds} rounds of ${plan.ms / 1_000} s each: an echo of 1 KiB, 16 calls open at a time.`,
  );
  print(
    "Toolgate writes every call to SQLite on disk. The others store nothing, except those with SQLite, which store one row a call. MCP is called by another client (HTTP/1.1), so compare its CPU, not its rate.",
  );
  print(
    table(
      ["", "calls/s", "server CPU µs/call", "CPU of CallTool, Connect ÷ this"],
      running.map(({ key, label }) => {
        const { cpu, measured } = of(key);
        return [
          label,
          spread(measured.map(({ callsPerSecond }) => callsPerSecond)),
          spread(cpu),
          spread(ratios(call.cpu, cpu), 2),
        ];
      }),
    ),
  );
  const control = of("ours-control");
  const goal = (figure: string, limit: number, [one, other]: readonly [string, string]): Goal => ({
    ...{ figure, limit, unit: "×", values: ratios(of(one).cpu, of(other).cpu) },
    control: ratios(control.cpu, call.cpu),
  });
  return [
    goal("`tools/call` ÷ MCP SDK 2 in memory, CPU", 1.9, ["ours-mcp", "mcp-2"]),
    goal("a tool of an MCP server through us ÷ an echo, CPU", 2, ["ours-upstream", "ours-call"]),
    goal("durable call ÷ MCP SDK in memory, CPU", 1.2, ["ours-call", "mcp"]),
    goal("durable call ÷ grpc-js, CPU", 5.5, ["ours-call", "grpc-js"]),
    goal("StreamTools ÷ CallTool, CPU", 0.8, ["ours-stream", "ours-grpc"]),
    goal("a tool file in its process ÷ an echo, CPU", 1.6, ["ours-file", "ours-call"]),
    {
      ...{ figure: "durable call with one open, p99 ÷ p50", limit: 2.5, unit: "×", values: call.tails },
      control: ratios(control.tails, call.tails),
    },
  ];
}
