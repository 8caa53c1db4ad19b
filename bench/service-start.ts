import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { ToolService } from "../gen/opencode/tool/v1/tool_service_pb.ts";
import { callByConnect, openSession } from "./echoes.ts";
import type { Goal } from "./goals.ts";
import { measure } from "./load.ts";
import type { Processes } from "./processes.ts";
import { spread, table } from "./report.ts";
import { startToolgate, type Toolgate } from "./toolgate.ts";

/** Sizes: open requests, calls that have ended, and starts with both in the store. */
export interface ServiceStartPlan {
  requests: number;
  calls: number;
  starts: number;
  /** Time without requests before memory is read. */
  restMs: number;
}

/** Prints the resident memory of the packaged service on SQLite, and the time of its starts until it listens. */
export async function measureServiceStart(
  processes: Processes,
  { requests, calls, starts, restMs }: ServiceStartPlan,
  print: (text: string) => void,
): Promise<Goal[]> {
  const main = join(import.meta.dirname, "../dist/main.js");
  const start = (name: string) => startToolgate(processes, { name, main, rules: 'bash = "ask"\n' });
  const count = (value: number) => value.toLocaleString("en");
  const rows: string[][] = [];
  const rest = async ({ server }: Toolgate) => {
    await pause(restMs);
    return await residentMiB(server.pid);
  };
  const note = async (state: string, service: Toolgate) => {
    const mib = await rest(service);
    rows.push([state, `${mib} MiB`]);
    return mib;
  };
  const [emptyMs, idle]: [number[], number[]] = [[], []];
  for (let i = 0; i < starts; i += 1) {
    const began = performance.now();
    const service = await start(`service-start-${i}`);
    emptyMs.push(performance.now() - began);
    idle.push(await rest(service));
    await processes.kill(service.server.pid);
  }
  rows.push(["idle", `${spread(idle)} MiB`]);
  let service = await start("service-start");
  const caller = service.connect("caller");
  await measure({ pids: [service.server.pid], echo: callByConnect(caller, await openSession(caller)) }, { calls });
  const afterCalls = await note(`${count(calls)} calls of 1 KiB made`, service);
  await openRequests(service, requests);
  const withRequests = await note(`and ${count(requests)} requests open`, service);
  const times: number[] = [];
  for (let i = 0; i < starts; i += 1) {
    await processes.kill(service.server.pid);
    const began = performance.now();
    service = await start("service-start");
    times.push(performance.now() - began);
  }
  const again = await note("started again with both in the store", service);
  await processes.stopAll();
  print(table(["resident memory of the service", ""], rows));
  print(
    `A start until it listens: empty ${spread(emptyMs)} ms; after \`kill -9\`, with all of that in the store, ${spread(times)} ms.`,
  );
  return [
    { figure: "memory of an idle service", limit: 110, unit: "MiB", values: idle },
    { figure: `memory after ${count(calls)} calls`, limit: 300, unit: "MiB", values: [afterCalls] },
    { figure: `memory then, with ${count(requests)} open requests`, limit: 320, unit: "MiB", values: [withRequests] },
    { figure: "memory after a start with both in the store", limit: 140, unit: "MiB", values: [again] },
    { figure: "start of an empty service", limit: 250, unit: "ms", values: emptyMs },
    {
      figure: `start with ${count(calls)} calls and ${count(requests)} open requests`,
      limit: 1_000,
      unit: "ms",
      values: times,
    },
  ];
}

/** Requests in one session. */
const perSession = 50;

async function openRequests({ connect }: Toolgate, requests: number): Promise<void> {
  const caller = connect("caller");
  let sessionId = "";
  for (let i = 0; i < requests; i += 1) {
    if (i % perSession === 0) sessionId = await openSession(caller);
    const call = { sessionId, callId: `call_${i}`, tool: "bash", input: { command: `make part-${i}` }, waitMs: 0 };
    const { part } = await caller.connect(ToolService.method.callTool, call);
    if (part?.state.case !== "pending") throw new Error(`call ${i} does not wait but is ${part?.state.case}`);
  }
}

async function residentMiB(pid: number): Promise<number> {
  const [, kiB] = /^VmRSS:\s+(\d+)/m.exec(await readFile(`/proc/${pid}/status`, "utf8")) ?? [];
  return Math.round(Number(kiB) / 1_024);
}
