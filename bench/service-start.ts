import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { ToolService } from "../gen/opencode/tool/v1/tool_service_pb.ts";
import { callByConnect, openSession } from "./echoes.ts";
import { measure } from "./load.ts";
import type { Processes } from "./processes.ts";
import { median, spread, table, target } from "./report.ts";
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
): Promise<void> {
  const main = join(import.meta.dirname, "../dist/main.js");
  const start = () => startToolgate(processes, { name: "service-start", main, rules: 'bash = "ask"\n' });
  const count = (value: number) => value.toLocaleString("en");
  const rows: string[][] = [];
  const note = async (state: string, { server }: Toolgate) => {
    await pause(restMs);
    rows.push([state, `${await residentMiB(server.pid)} MiB`]);
  };
  let service = await start();
  await note("idle", service);
  await openRequests(service, requests);
  await note(`${count(requests)} requests open`, service);
  const caller = service.connect("caller");
  await measure({ pids: [service.server.pid], echo: callByConnect(caller, await openSession(caller)) }, { calls });
  await note(`and ${count(calls)} calls of 1 KiB made`, service);
  const times: number[] = [];
  for (let i = 0; i < starts; i += 1) {
    await processes.kill(service.server.pid);
    const began = performance.now();
    service = await start();
    times.push(performance.now() - began);
  }
  await note("started again with both in the store", service);
  print(table(["resident memory of the service", ""], rows));
  print(`A start after \`kill -9\`, until it listens, with all of that in the store: ${spread(times)} ms.`);
  print(target(`a start with ${count(calls)} calls`, median(times) / 1_000, 1, "s"));
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
