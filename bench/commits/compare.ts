import { execFile } from "node:child_process";
import { readFileSync } from "node:fs";
import { promisify } from "node:util";
import { callByConnect, callByGrpc, executeByGrpc, openSession, type Protocol } from "../echoes.ts";
import { inspectable, liveBytes } from "../heap.ts";
import type { Http2Client } from "../http2-client.ts";
import { type Echo, measure } from "../load.ts";
import type { Processes } from "../processes.ts";
import { startRedis } from "../redis.ts";
import { table } from "../report.ts";
import { createAskingFile } from "../scale/asking-file.ts";
import { startToolgate, type Toolgate } from "../toolgate.ts";
import { figureRow } from "./ratio.ts";
import { type AddFigure, createFigures, createSides, type InTurn, inTurns, openAsks, type Side } from "./sides.ts";
import { toolCalls, toolRules, writeToolFiles } from "./tool-calls.ts";

export interface ComparePlan {
  /** Calls by each protocol before anything is measured. */
  readonly warmUp: number;
  /** Milliseconds per figure and side, of protocols and of tools. */
  readonly ms: number;
  readonly toolMs: number;
  /** Files of the tree that is searched. */
  readonly files: number;
  /** Permission requests that are opened to measure their memory. */
  readonly asks: number;
}

const protocols: readonly (readonly [label: string, protocol: Protocol])[] = [
  ["CallTool, Connect", callByConnect],
  ["CallTool, gRPC", callByGrpc],
  ["ExecuteTool, gRPC stream", executeByGrpc],
];

/**
 * Compares this checkout with a commit. Each round starts new processes of both, through `main.ts serve`, and measures
 * each figure of both directly one after the other; the side that begins changes from round to round.
 */
export async function compareCommits(
  processes: Processes,
  commit: string,
  { rounds, ...plan }: ComparePlan & { readonly rounds: number },
  print: (text: string) => void,
): Promise<void> {
  const { head, other, sidesOf } = await createSides(processes, commit);
  const { add, figures } = createFigures();
  for (let round = 0; round < rounds; round += 1) {
    const sides = sidesOf(round);
    await measureStart(sides, add);
    await measureService(processes, sides, { ...plan, round }, add);
    await measureRedis(processes, sides, { ...plan, round }, add);
  }
  const rows = figures().map(figureRow);
  print(
    `Checkout at ${head} beside commit ${other}: medians of ${rounds} round${rounds === 1 ? "" : "s"}; the mean ratio with its 95 % interval.`,
  );
  print(table(["", "checkout", other, "ratio", "verdict"], rows));
  print(
    "*less*: the interval ends below 1. *same*: at most 5 % more. *uncertain*: more, but the interval includes 1. *more*: neither.",
  );
}

/** Measures the CPU time of the shortest command. */
async function measureStart(sides: readonly Side[], add: AddFigure): Promise<void> {
  const times = 4;
  for (const side of sides) {
    const before = endedChildrenMicros();
    for (let i = 0; i < times; i += 1) await promisify(execFile)(process.execPath, [side.main, "--version"]);
    add("toolgate --version, CPU", "ms", side, (endedChildrenMicros() - before) / times / 1_000);
  }
}

/** Measures protocols, tools and memory of services on SQLite. */
async function measureService(
  processes: Processes,
  sides: readonly Side[],
  { warmUp, ms, toolMs, files, asks, round }: ComparePlan & { readonly round: number },
  add: AddFigure,
): Promise<void> {
  const services: Service[] = [];
  for (const side of sides) {
    const name = `${side.name}-${round}`;
    const { main } = side;
    const service = await startToolgate(processes, { name, main, flags: [inspectable], rules: toolRules });
    if (services.length === 0 && round === 0) await writeToolFiles(service.workspace, files);
    services.push({ side, service, client: service.connect("caller") });
  }
  for (const [label, protocol] of protocols) {
    const targets = await Promise.all(services.map((each) => targetOf(each, protocol)));
    for (const { target } of targets) await measure(target, { calls: warmUp });
    for (const { side, cpu } of await inTurns(targets, ms)) add(`${label}, CPU per call`, "µs", side, cpu);
  }
  for (const { label, width, open } of toolCalls) {
    const targets = await Promise.all(services.map((each) => targetOf(each, open)));
    for (const { target } of targets) await measure(target, { ms: toolMs / 2 }, width);
    for (const { side, cpu } of await inTurns(targets, toolMs, width)) add(`${label}, CPU per call`, "µs", side, cpu);
  }
  for (const { side, service, client } of services) {
    const before = await liveBytes(service.server);
    add("live memory after these calls", "MiB", side, before / 1_048_576);
    await openAsks(client, await createAskingFile(service.workspace), asks);
    const grown = (await liveBytes(service.server)) - before;
    add("memory per open permission request", "KiB", side, grown / asks / 1_024);
  }
  await processes.stopAll();
}

/** Measures a replica on Redis, and that Redis. */
async function measureRedis(
  processes: Processes,
  sides: readonly Side[],
  { warmUp, ms, round }: ComparePlan & { readonly round: number },
  add: AddFigure,
): Promise<void> {
  const targets: (InTurn & { side: Side })[] = [];
  const redisPids: number[] = [];
  for (const side of sides) {
    const redis = await startRedis(processes);
    const name = `redis-${side.name}-${round}`;
    const service = await startToolgate(processes, { name, main: side.main, store: redis.url });
    const client = service.connect("caller");
    const echo = callByConnect(client, await openSession(client));
    targets.push({ side, target: { pids: [service.server.pid], echo }, also: redis.pid });
    redisPids.push(redis.pid);
  }
  for (const { target } of targets) await measure(target, { calls: warmUp });
  for (const { side, cpu, also } of await inTurns(targets, ms)) {
    add("CallTool on Redis, CPU of the replica per call", "µs", side, cpu);
    add("CallTool on Redis, CPU of Redis per call", "µs", side, also);
  }
  await processes.stopAll();
}

interface Service {
  readonly side: Side;
  readonly service: Toolgate;
  readonly client: Http2Client;
}

async function targetOf(
  { side, service, client }: Service,
  open: Protocol | ((client: Http2Client) => Promise<Echo>),
): Promise<InTurn & { side: Side }> {
  const echo = await open(client, await openSession(client));
  return { side, target: { pids: [service.server.pid], echo } };
}

/** The CPU time of children of this process that have ended, in µs. */
function endedChildrenMicros(): number {
  const stat = readFileSync("/proc/self/stat", "utf8");
  // proc_pid_stat(5): behind the name, fields 16 and 17 are the 13th and 14th.
  const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
  return (Number(fields[13]) + Number(fields[14])) * 10_000;
}
