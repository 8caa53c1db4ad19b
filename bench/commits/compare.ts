import { execFile } from "node:child_process";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { promisify } from "node:util";
import { PermissionService } from "../../gen/opencode/tool/v1/permission_service_pb.ts";
import { ToolService } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { cpuTime } from "../cpu-time.ts";
import { callByConnect, callByGrpc, executeByGrpc, openSession, type Protocol } from "../echoes.ts";
import { inspectable, liveBytes } from "../heap.ts";
import type { Http2Client } from "../http2-client.ts";
import { type Echo, measure, type Target } from "../load.ts";
import type { Processes } from "../processes.ts";
import { startRedis } from "../redis.ts";
import { table } from "../report.ts";
import { createAskingFile } from "../scale/asking-file.ts";
import { startToolgate, type Toolgate } from "../toolgate.ts";
import { checkOut, resolveCommit } from "./checkout.ts";
import { type Figure, figureRow } from "./ratio.ts";
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

/** One of the two versions: the entry point of its service. */
interface Side {
  readonly name: "ours" | "theirs";
  readonly main: string;
}

/** Adds the value of one side in one round to a figure. */
type Add = (label: string, unit: string, side: Side, value: number) => void;

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
  const [head, other] = [await resolveCommit("HEAD"), await resolveCommit(commit)];
  const ours: Side = { name: "ours", main: join(import.meta.dirname, "../../src/main.ts") };
  const theirs: Side = { name: "theirs", main: await checkOut(other, join(processes.folder, "commit")) };
  const figures = new Map<string, { unit: string; ours: number[]; theirs: number[] }>();
  const add: Add = (label, unit, { name }, value) => {
    const figure = figures.get(label) ?? { unit, ours: [], theirs: [] };
    figures.set(label, figure);
    figure[name].push(value);
  };
  for (let round = 0; round < rounds; round += 1) {
    const sides = round % 2 === 0 ? [ours, theirs] : [theirs, ours];
    await measureStart(sides, add);
    await measureService(processes, sides, { ...plan, round }, add);
    await measureRedis(processes, sides, { ...plan, round }, add);
  }
  const rows = [...figures].map(([label, figure]): Figure => ({ label, ...figure })).map(figureRow);
  print(
    `Checkout at ${head} beside commit ${other}: medians of ${rounds} round${rounds === 1 ? "" : "s"}; the mean ratio with its 95 % interval.`,
  );
  print(table(["", "checkout", other, "ratio", "verdict"], rows));
  print(
    "*less*: the interval ends below 1. *same*: at most 5 % more. *uncertain*: more, but the interval includes 1. *more*: neither.",
  );
}

/** Measures the CPU time of the shortest command. */
async function measureStart(sides: readonly Side[], add: Add): Promise<void> {
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
  add: Add,
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
  add: Add,
): Promise<void> {
  const targets: SideTarget[] = [];
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

interface SideTarget {
  readonly side: Side;
  readonly target: Target;
  /** A second process whose CPU time is measured apart. */
  readonly also?: number;
}

async function targetOf(
  { side, service, client }: Service,
  open: Protocol | ((client: Http2Client) => Promise<Echo>),
): Promise<SideTarget> {
  const echo = await open(client, await openSession(client));
  return { side, target: { pids: [service.server.pid], echo } };
}

/** Measures the first for half of the time, the second for all of it, then the first again. */
async function inTurns(targets: readonly SideTarget[], ms: number, width?: number) {
  const [first, second] = targets;
  if (first === undefined || second === undefined) throw new Error("two sides are compared");
  const sums = new Map(targets.map(({ side }) => [side, { calls: 0, micros: 0, also: 0 }]));
  for (const [{ side, target, also }, share] of [
    [first, 0.5],
    [second, 1],
    [first, 0.5],
  ] as const) {
    const before = also === undefined ? 0 : cpuTime(also);
    const { calls, cpuPerCall } = await measure(target, { ms: ms * share }, width);
    const sum = sums.get(side);
    if (sum === undefined) continue;
    sum.calls += calls;
    sum.micros += calls * cpuPerCall;
    sum.also += (also === undefined ? 0 : cpuTime(also)) - before;
  }
  return [...sums].map(([side, { calls, micros, also }]) => ({ side, cpu: micros / calls, also: also / calls }));
}

/** Opens permission requests, at most 50 in a session, and resolves when all are open. */
async function openAsks(client: Http2Client, filePath: string, asks: number): Promise<void> {
  for (let from = 0; from < asks; from += 50) {
    const sessionId = await openSession(client);
    const count = Math.min(50, asks - from);
    for (let index = 0; index < count; index += 1) {
      const call = { sessionId, callId: `call_${index}`, tool: "read", input: { filePath }, waitMs: 0 };
      await client.connect(ToolService.method.callTool, call);
    }
    let open = 0;
    while (open < count) {
      const page = { sessionId, pageSize: count };
      open = (await client.connect(PermissionService.method.listPermissions, page)).permissions.length;
    }
  }
}

/** The CPU time of children of this process that have ended, in µs. */
function endedChildrenMicros(): number {
  const stat = readFileSync("/proc/self/stat", "utf8");
  // proc_pid_stat(5): behind the name, fields 16 and 17 are the 13th and 14th.
  const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
  return (Number(fields[13]) + Number(fields[14])) * 10_000;
}
