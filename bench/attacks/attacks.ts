import { spawn } from "node:child_process";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { bytesByGrpc, callByGrpc, openSession } from "../echoes.ts";
import { inspectable, liveBytes } from "../heap.ts";
import { createHttp2Client } from "../http2-client.ts";
import type { Processes, ServerProcess } from "../processes.ts";
import { percentile, table } from "../report.ts";
import { startToolgate } from "../toolgate.ts";

/** Times of each attack on each server. */
export interface AttacksPlan {
  /** The caller alone, as the base of the ratio. */
  quietMs: number;
  attackMs: number;
  /** Time after the attack, before memory is read. */
  restMs: number;
}

const attacks = {
  reflection: "reflection: 50 × 100 streams of 8 questions",
  uploads: "bodies of 1 MiB that never end: 2 × 64",
  resets: "streams opened and reset: 4 connections",
  headers: "58 kB of compressed headers: 4 × 50 streams",
  connections: "2,000 idle connections",
};

/** A server under attack, and its healthy caller. */
interface Target {
  server: ServerProcess;
  call: () => Promise<unknown>;
}

/** Measures a healthy caller of Toolgate and of bare node:http2 while clients without a token attack, and the memory after it. */
export async function measureAttacks(
  processes: Processes,
  plan: AttacksPlan,
  print: (text: string) => void,
): Promise<void> {
  const toolgate = await startToolgate(processes, { name: "attacked", flags: [inspectable] });
  const bare = await processes.start([inspectable, join(import.meta.dirname, "../servers/http2.ts")]);
  const caller = toolgate.connect("caller");
  const bareCaller = createHttp2Client(bare.url);
  const session = await openSession(caller);
  const targets: Target[] = [
    { server: toolgate.server, call: callByGrpc(caller, session) },
    { server: bare, call: bytesByGrpc(bareCaller, session) },
  ];
  for (const { server, call } of targets) {
    await latencies(call, plan.quietMs);
    await liveBytes(server);
  }
  const rows: string[][] = [];
  for (const [name, label] of Object.entries(attacks)) {
    const cells: string[] = [];
    for (const target of targets) cells.push(...(await measureAttack(target, name, plan)));
    rows.push([label, ...cells, await bufferedBytes(toolgate.server.url)]);
  }
  caller.close();
  bareCaller.close();
  print(
    "Latency of a caller that echoes 1 KiB each 20 ms, alone → during the attack: median, 99th percentile. RSS: growth at its peak → after the attack. Live: growth of heap and buffers after the attack and a garbage collection. Buffered: `toolgate_buffered_bytes` after the attack.",
  );
  const head = ["attack", "p50 ms", "p99 ms", "RSS MiB", "live MiB"];
  print(
    table(
      [
        "attack, without a token",
        ...head.slice(1).map((text) => `Toolgate ${text}`),
        ...head.slice(1).map((text) => `bare ${text}`),
        "buffered",
      ],
      rows,
    ),
  );
}

async function measureAttack({ server, call }: Target, name: string, plan: AttacksPlan): Promise<string[]> {
  const liveBefore = await liveBytes(server);
  const rssBefore = rss(server.pid);
  const quiet = await latencies(call, plan.quietMs);
  let peak = rssBefore;
  const sampling = setInterval(() => {
    peak = Math.max(peak, rss(server.pid));
  }, 50);
  const attacker = spawn(
    process.execPath,
    ["--no-warnings", join(import.meta.dirname, "attacker.ts"), server.url, name, String(plan.attackMs)],
    { stdio: ["ignore", "ignore", "inherit"] },
  );
  const ended = once(attacker, "exit");
  const during = await latencies(call, plan.attackMs);
  await ended;
  await delay(plan.restMs);
  clearInterval(sampling);
  const live = (await liveBytes(server)) - liveBefore;
  const memory = `${mib(peak - rssBefore)} → ${mib(rss(server.pid) - rssBefore)}`;
  const change = (share: number) => `${percentile(quiet, share).toFixed(1)} → ${percentile(during, share).toFixed(1)}`;
  return [change(0.5), change(0.99), memory, mib(live)];
}

/** Makes a call each 20 ms, also while earlier ones are unanswered, and returns how long each of them took, in ms. */
async function latencies(call: () => Promise<unknown>, ms: number): Promise<number[]> {
  const all: Promise<number>[] = [];
  const end = performance.now() + ms;
  while (performance.now() < end) {
    const began = performance.now();
    all.push(call().then(() => performance.now() - began));
    await delay(20);
  }
  return await Promise.all(all);
}

async function bufferedBytes(url: string): Promise<string> {
  const headers = { authorization: "Bearer watcher-token-for-tests" };
  const text = await (await fetch(`${url}/metrics`, { headers })).text();
  return /^toolgate_buffered_bytes (\d+)$/m.exec(text)?.[1] ?? "unknown";
}

/** Resident memory of a process, in bytes. */
function rss(pid: number): number {
  const [, kib = "0"] = /^VmRSS:\s+(\d+) kB$/m.exec(readFileSync(`/proc/${pid}/status`, "utf8")) ?? [];
  return Number(kib) * 1_024;
}

const mib = (bytes: number) => String(Math.round(bytes / 1_048_576) || 0);
