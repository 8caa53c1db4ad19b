import { readFileSync } from "node:fs";
import { setTimeout as delay } from "node:timers/promises";
import { cpuTime } from "../cpu-time.ts";
import { grpcNamed, openSession } from "../echoes.ts";
import { inspectable, liveBytes } from "../heap.ts";
import { measure } from "../load.ts";
import type { Processes } from "../processes.ts";
import { table, target } from "../report.ts";
import { startToolgate } from "../toolgate.ts";
import { startWorker, workerPrograms, workerTokens } from "./programs.ts";
import { connectRaw, newInstance } from "./raw-worker.ts";

/** Size of the measurement of idle workers. */
export interface IdlePlan {
  readonly workers: number;
  /** Time for which their beats are measured. */
  readonly idleMs: number;
  readonly warmUp: number;
  readonly ms: number;
}

/** Processes of one token, at most. */
const processesOfToken = 50;
const maxKiB = 64;

/** Connects many idle workers: measures memory, the CPU time of their beats, and what a call costs beside them. */
export async function measureIdle(
  processes: Processes,
  { workers, idleMs, warmUp, ms }: IdlePlan,
  print: (text: string) => void,
): Promise<void> {
  const tokens = Math.ceil(workers / processesOfToken);
  const limits = "[limits]\nconnections = 4096\nconnections_from_loopback = 4096\n";
  const settings = workerTokens(1 + tokens) + limits;
  const service = await startToolgate(processes, {
    ...{ name: "idle-workers", flags: [inspectable], rules: 'echo_go = "allow"', settings },
  });
  const { server } = service;
  const [go] = workerPrograms(processes.folder);
  if (go === undefined) throw new Error("there is no worker in Go");
  await startWorker(processes, go.command(), server.url);
  const client = service.connect("caller");
  const calls = { pids: [server.pid], echo: grpcNamed(go.tool)(client, await openSession(client)) };
  await measure(calls, { calls: warmUp });
  const sample = async () => {
    const before = cpuTime(server.pid);
    await delay(idleMs);
    const idle = (cpuTime(server.pid) - before) / idleMs / 1_000;
    const { cpuPerCall } = await measure(calls, { ms });
    return { live: await liveBytes(server), resident: residentBytes(server.pid), idle, cpuPerCall };
  };
  const before = await sample();
  const connected = [];
  for (let index = 0; index < workers; index += 1)
    connected.push(await connectRaw(server.url, { token: 1 + (index % tokens), instanceId: newInstance() }));
  const after = await sample();
  for (const worker of connected) worker.close();
  await processes.stopAll();
  const each = (bytes: number) => bytes / workers / 1_024;
  const memory = each(after.live - before.live);
  const many = workers.toLocaleString("en");
  print(`${many} workers that do nothing, of ${tokens} tokens, beside one whose tool is called.`);
  const row = (label: string, { idle, cpuPerCall }: typeof before) => [
    ...[label, (100 * idle).toFixed(1), cpuPerCall.toFixed(0)],
  ];
  print(
    table(
      ["idle workers", "CPU of the server at rest, % of a core", "CPU µs/call of a worker"],
      [row("0", before), row(many, after)],
    ),
  );
  print(
    [
      target("live memory of the server for each", memory, maxKiB, "KiB", 1),
      `- resident memory of the server for each: ${each(after.resident - before.resident).toFixed(1)} KiB`,
    ].join("\n"),
  );
}

function residentBytes(pid: number): number {
  const [, kiB = "0"] = /VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, "utf8")) ?? [];
  return Number(kiB) * 1_024;
}
