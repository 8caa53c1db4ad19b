import { mkdir, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { SourceService } from "../gen/opencode/tool/v1/source_service_pb.ts";
import { callNamed, openSession } from "./echoes.ts";
import { type Echo, measure, timesOf } from "./load.ts";
import type { Processes } from "./processes.ts";
import { percentile, spread, table } from "./report.ts";
import { startToolgate } from "./toolgate.ts";

const file = `export default { description: "Returns a text.", args: { text: { type: "string" } }, execute: ({ text }) => text };`;

/** Measures calls of a tool file, whose body runs in a tool process, beside those of the built-in echo, in turn. */
export async function measureToolProcess(
  processes: Processes,
  { warmUp, rounds, ms }: { warmUp: number; rounds: number; ms: number },
  print: (text: string) => void,
): Promise<void> {
  const own = join(processes.folder, "tool-process");
  const { server, connect } = await startToolgate(processes, { name: "tool-process", rules: 'mirror = "allow"' });
  const client = connect("caller");
  const kinds = await Promise.all(
    ["echo", "mirror"].map(async (tool) => {
      const echo = callNamed(tool)(client, await openSession(client));
      return { tool, target: { pids: [server.pid], echo }, cpu: [] as number[], p50: [] as number[] };
    }),
  );
  const [builtIn, inProcess] = kinds;
  if (builtIn === undefined || inProcess === undefined) throw new Error("no tools");
  await builtIn.target.echo();
  // The first call after the file is there starts its process.
  await mkdir(join(own, "tool"), { recursive: true });
  await writeFile(join(own, "tool/mirror.ts"), file);
  const firstMs = await timeOf(inProcess.target.echo);
  const { sources } = await connect("approver-1").connect(SourceService.method.listSources, {});
  const idle = sources.find(({ name }) => name === dirname(join(own, "toolgate.toml")));
  for (const { target } of kinds) await measure(target, { calls: warmUp });
  for (let round = 0; round < rounds; round += 1) {
    for (const { target, cpu, p50 } of kinds) {
      cpu.push((await measure(target, { ms })).cpuPerCall);
      p50.push(percentile(await timesOf(target.echo, ms), 0.5));
    }
  }
  print(
    `Median (min–max) of ${rounds} rounds of ${ms / 1_000} s each: 1 KiB of text; CPU of service and tool process together with 16 calls open at a time, p50 with one. The built-in echo has no effects, so its call is recorded in one step; that of a tool file takes two.`,
  );
  const row = ({ tool, cpu, p50 }: (typeof kinds)[number]) => [`\`${tool}\``, spread(cpu), spread(p50, 2)];
  print(table(["", "CPU µs/call", "p50 ms"], kinds.map(row)));
  const ratios = (key: "cpu" | "p50") =>
    inProcess[key].map((value, round) => value / (builtIn[key][round] ?? Number.NaN));
  print(`Tool file ÷ built-in: CPU ${spread(ratios("cpu"), 2)}, p50 ${spread(ratios("p50"), 2)}.`);
  print(
    `First call of the tool file, with the start of its process (${idle?.origin ?? "unknown"}): ${firstMs.toFixed(0)} ms. Memory of the process after it, with its sandbox: ${(Number(idle?.memoryBytes ?? 0) / 1_048_576).toFixed(0)} MiB.`,
  );
}

async function timeOf(echo: Echo): Promise<number> {
  const began = performance.now();
  await echo();
  return performance.now() - began;
}
