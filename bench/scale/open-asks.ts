import { setTimeout as pause } from "node:timers/promises";
import { PermissionService } from "../../gen/opencode/tool/v1/permission_service_pb.ts";
import type { PermissionRequest, ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { ToolService } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { cpuTime } from "../cpu-time.ts";
import { openSession } from "../echoes.ts";
import type { Goal } from "../goals.ts";
import { inspectable, liveBytes } from "../heap.ts";
import type { Http2Client } from "../http2-client.ts";
import type { Processes } from "../processes.ts";
import { type RedisServer, startRedis } from "../redis.ts";
import { table } from "../report.ts";
import { approvers, startToolgate, type Toolgate } from "../toolgate.ts";
import { createAskingFile } from "./asking-file.ts";
import { checkOutcomes, race } from "./race.ts";
import { inTurn, itemOf } from "./turns.ts";

/** Cost of open permission requests, and the rate of answers. */
export interface OpenAsks {
  readonly asks: number;
  readonly sessions: number;
  readonly openSeconds: number;
  /** Bytes per ask: of all replicas together, and of Redis. */
  readonly heap: number;
  readonly redis: number;
  /** Cores that replicas and Redis use while nothing happens. */
  readonly idleCpu: number;
  readonly replies: number;
  readonly replySeconds: number;
  /** From the first reply until every call has ended. */
  readonly endSeconds: number;
  /** µs of CPU time per reply, with all that follows from it: of the replicas, and of Redis. */
  readonly replicaCpu: number;
  readonly redisCpu: number;
}

/** Opens asks in many sessions over three replicas, then has two of four approvers answer each at once, one for it and one against. */
export async function measureOpenAsks(
  processes: Processes,
  { sessions, asksEach, idleMs }: { sessions: number; asksEach: number; idleMs: number },
): Promise<OpenAsks> {
  const asks = sessions * asksEach;
  const redis = await startRedis(processes);
  const replicas: Toolgate[] = [];
  for (const letter of ["a", "b", "c"]) {
    const replica = { name: `asks-${letter}`, store: redis.url, flags: [inspectable] };
    replicas.push(await startToolgate(processes, replica));
  }
  const filePath = await createAskingFile(replicas[0]?.workspace ?? "");
  const callers = replicas.map(({ connect }) => connect("caller"));
  const owned = await inTurn(sessions, 16, async (index) => {
    const client = itemOf(callers, index);
    return { client, sessionId: await openSession(client) };
  });

  const before = await memory(replicas, redis);
  const began = performance.now();
  const opened = (await inTurn(sessions, 16, (index) => open(itemOf(owned, index), asksEach, filePath))).flat();
  const openSeconds = secondsSince(began);
  // Redis remembers what it answered for 20 s, in case it is asked again; that is no part of an ask.
  const idleCpu = await coresUsed([...replicas.map(({ server }) => server.pid), redis.pid], () => pause(idleMs));
  const after = await memory(replicas, redis);
  const people = approvers.map((name, index) => itemOf(replicas, index).connect(name));

  const pids = replicas.map(({ server }) => server.pid);
  const cpu = () => ({ replicas: pids.reduce((sum, pid) => sum + cpuTime(pid), 0), redis: cpuTime(redis.pid) });
  const cpuBefore = cpu();
  const repliesBegan = performance.now();
  const { replies, won } = await race(opened, people);
  const replySeconds = secondsSince(repliesBegan);
  // The callers' connections may have been closed, since they were idle meanwhile.
  const readers = replicas.map(({ connect }) => connect("caller"));
  const ended = (index: number) =>
    untilEnded({ client: itemOf(readers, index), sessionId: itemOf(owned, index).sessionId }, asksEach);
  const parts = (await inTurn(sessions, 16, ended)).flat();
  const endSeconds = secondsSince(repliesBegan);
  const cpuAfter = cpu();
  checkOutcomes(opened, won, parts);
  await processes.stopAll();
  const heap = (after.heap - before.heap) / asks;
  return {
    asks,
    sessions,
    openSeconds,
    heap,
    redis: (after.redis - before.redis) / asks,
    idleCpu,
    replies,
    replySeconds,
    endSeconds,
    replicaCpu: (cpuAfter.replicas - cpuBefore.replicas) / replies,
    redisCpu: (cpuAfter.redis - cpuBefore.redis) / replies,
  };
}

/** Table of costs, and the goal for the answers. */
export function openAsksReport(result: OpenAsks, print: (text: string) => void): Goal[] {
  const { asks, sessions, openSeconds, heap, redis, idleCpu, replies, replySeconds, endSeconds } = result;
  const { replicaCpu, redisCpu } = result;
  const count = (value: number) => Math.round(value).toLocaleString("en");
  const rows = [
    [`${count(asks)} asks opened, in ${count(sessions)} sessions`, `${openSeconds.toFixed(1)} s`],
    ["memory per open ask, in its replica", `${(heap / 1_024).toFixed(1)} KiB`],
    ["memory per open ask, in Redis", `${(redis / 1_024).toFixed(1)} KiB`],
    ["CPU of replicas and Redis while all wait", `${idleCpu.toFixed(2)} cores`],
    [`${count(replies)} racing replies, ${count(asks)} winners`, `${replySeconds.toFixed(1)} s`],
    ["until every call has run or is rejected", `${endSeconds.toFixed(1)} s`],
    ["CPU per reply with its calls, of replicas", `${count(replicaCpu)} µs`],
    ["CPU per reply with its calls, of Redis", `${count(redisCpu)} µs`],
  ];
  print(table(["open asks, three replicas", ""], rows));
  return [
    {
      figure: `${count(replies)} racing replies, exactly ${count(asks)} winners`,
      ...{ limit: 10, unit: "s", values: [replySeconds] },
    },
  ];
}

interface Owned {
  readonly client: Http2Client;
  readonly sessionId: string;
}

/** Makes calls that ask, and resolves to the asks when all are open. */
async function open({ client, sessionId }: Owned, count: number, filePath: string): Promise<PermissionRequest[]> {
  for (let index = 0; index < count; index += 1) {
    const call = { sessionId, callId: `call_${index}`, tool: "read", input: { filePath }, waitMs: 0 };
    await client.connect(ToolService.method.callTool, call);
  }
  for (;;) {
    const page = { sessionId, pageSize: count };
    const { permissions } = await client.connect(PermissionService.method.listPermissions, page);
    if (permissions.length === count) return permissions;
    await pause(20);
  }
}

/** The calls of a session, when all have ended. */
async function untilEnded({ client, sessionId }: Owned, count: number): Promise<ToolPart[]> {
  for (;;) {
    const { parts } = await client.connect(ToolService.method.listToolParts, { sessionId, pageSize: count });
    if (parts.filter(({ state }) => state.case === "completed" || state.case === "error").length === count)
      return parts;
    await pause(50);
  }
}

async function memory(replicas: readonly Toolgate[], { client }: RedisServer) {
  const heaps = await Promise.all(replicas.map(({ server }) => liveBytes(server)));
  const [, used = Number.NaN] = /used_memory:(\d+)/.exec(await client.info("memory")) ?? [];
  return { heap: heaps.reduce((sum, bytes) => sum + bytes, 0), redis: Number(used) };
}

async function coresUsed(pids: readonly number[], work: () => Promise<void>): Promise<number> {
  const used = () => pids.reduce((sum, pid) => sum + cpuTime(pid), 0);
  const [before, began] = [used(), performance.now()];
  await work();
  return (used() - before) / 1_000_000 / secondsSince(began);
}

function secondsSince(began: number): number {
  return (performance.now() - began) / 1_000;
}
