import { join } from "node:path";
import { callByModernMcp } from "./echoes.ts";
import { measure, type Sample, type Target } from "./load.ts";
import type { Processes } from "./processes.ts";
import { spread, table } from "./report.ts";
import { startToolgate } from "./toolgate.ts";

/** Measures `tools/call` through the service beside a server of the MCP library that stores nothing, in turn. */
export async function measureMcp(
  processes: Processes,
  { warmUp, rounds, ms }: { warmUp: number; rounds: number; ms: number },
  print: (text: string) => void,
): Promise<void> {
  const running = await Promise.all([startOurs(processes), startLibrary(processes)]);
  for (const { target } of running) await measure(target, { calls: warmUp });
  for (let round = 0; round < rounds; round += 1) {
    for (const { target, samples } of running) {
      await measure(target, { ms: ms / 2 });
      samples.push(await measure(target, { ms }));
    }
  }
  const [ours, library] = running;
  print(
    `Median (min–max) of ${rounds} rounds of ${ms / 1_000} s each: an echo of 1 KiB, 16 calls open at a time, version 2026-07-28.`,
  );
  const row = ({ label, samples }: Running) => [
    label,
    spread(samples.map(({ callsPerSecond }) => callsPerSecond)),
    spread(samples.map(({ cpuPerCall }) => cpuPerCall)),
  ];
  print(table(["", "calls/s", "server CPU µs/call"], running.map(row)));
  const ratios = ours.samples.map(
    ({ cpuPerCall }, round) => cpuPerCall / (library.samples[round]?.cpuPerCall ?? Number.NaN),
  );
  print(`CPU of a call through Toolgate ÷ the library's own server: ${spread(ratios, 2)}.`);
}

interface Running {
  readonly label: string;
  readonly target: Target;
  readonly samples: Sample[];
}

async function startOurs(processes: Processes): Promise<Running> {
  const { server } = await startToolgate(processes, { name: "mcp" });
  const echo = callByModernMcp(`${server.url}/mcp`, { authorization: "Bearer caller-token-for-tests" });
  return { label: "Toolgate, `/mcp`", target: { pids: [server.pid], echo }, samples: [] };
}

async function startLibrary(processes: Processes): Promise<Running> {
  const server = await processes.start([join(import.meta.dirname, "servers/mcp-2.ts"), processes.folder]);
  const echo = callByModernMcp(server.url);
  return { label: "MCP SDK 2, in memory", target: { pids: [server.pid], echo }, samples: [] };
}
