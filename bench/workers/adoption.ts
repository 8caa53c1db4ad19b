import { ToolService } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import type { WorkResponse } from "../../gen/opencode/tool/v1/worker_pb.ts";
import { openSession } from "../echoes.ts";
import type { Processes } from "../processes.ts";
import { startRedis } from "../redis.ts";
import { median, spread, table, target } from "../report.ts";
import { startToolgate, type Toolgate } from "../toolgate.ts";
import { workerTokens } from "./programs.ts";
import { connectRaw, newInstance, type RawWorker } from "./raw-worker.ts";

/** Size of the measurement of an adoption. */
export interface AdoptionPlan {
  readonly rounds: number;
  readonly calls: number;
}

const callsOfSession = 50;
const callsOfWorker = 100;
const maxSeconds = 2;

/** Kills a service with running calls of workers, which connect to another one, or again: measures until their calls go on. */
export async function measureAdoption(
  processes: Processes,
  { rounds, calls }: AdoptionPlan,
  print: (text: string) => void,
): Promise<void> {
  const kinds = [
    { label: "Redis: at another replica", isRedis: true, adopted: [] as number[], ended: [] as number[] },
    { label: "SQLite: after a restart", isRedis: false, adopted: [] as number[], ended: [] as number[] },
  ];
  for (let round = 0; round < rounds; round += 1) {
    for (const { isRedis, adopted, ended } of kinds) {
      const store = isRedis ? (await startRedis(processes)).url : "sqlite";
      const start = (replica: string) =>
        startToolgate(processes, {
          name: `adoption-${round}-${isRedis ? replica : "sqlite"}`,
          ...{ store, rules: 'hold_0 = "allow"', settings: workerTokens() },
        });
      const seconds = await adopt(processes, start, isRedis, calls);
      adopted.push(seconds.adopted);
      ended.push(seconds.ended);
      await processes.stopAll();
    }
  }
  const many = calls.toLocaleString("en");
  const workers = Math.ceil(calls / callsOfWorker);
  print(
    `kill -9 of a replica with ${many} running calls of ${workers} workers; seconds from their first new connection until all calls go on, and until all results are recorded. Median (min–max) of ${rounds} round${rounds === 1 ? "" : "s"}.`,
  );
  const rows = kinds.map(({ label, adopted, ended }) => [label, spread(adopted, 2), spread(ended, 2)]);
  print(table(["", "adopted, s", "ended, s"], rows));
  print(
    kinds
      .map(({ label, adopted }) => target(`${label}: ${many} calls adopted`, median(adopted), maxSeconds, "s"))
      .join("\n"),
  );
}

async function adopt(
  processes: Processes,
  start: (replica: string) => Promise<Toolgate>,
  isRedis: boolean,
  calls: number,
) {
  const first = await start("a");
  const second = isRedis ? await start("b") : undefined;
  const instances = Array.from({ length: Math.ceil(calls / callsOfWorker) }, newInstance);
  const held = instances.map((): string[] => []);
  const started = counter(calls);
  for (const [index, instanceId] of instances.entries()) {
    await connectRaw(first.server.url, { token: 0, instanceId }, ({ case: name, value }) => {
      if (name !== "start") return;
      held[index]?.push(value.assignment);
      started.add();
    });
  }
  await makeCalls(first, calls);
  await started.done;
  await processes.kill(first.server.pid);
  const { server } = second ?? (await start("a"));

  const [adopted, ended] = [counter(calls), counter(calls)];
  const began = performance.now();
  const workers = await Promise.all(
    instances.map((instanceId, index) => {
      const hello = { connection: 2n, held: held[index] ?? [] };
      return connectRaw(server.url, { token: 0, instanceId, hello }, takeOutcome(adopted.add, ended.add));
    }),
  );
  await adopted.done;
  const adoptedAt = performance.now();
  for (const [index, worker] of workers.entries())
    for (const assignment of held[index] ?? []) complete(worker, assignment);
  await ended.done;
  const endedAt = performance.now();
  for (const worker of workers) worker.close();
  return { adopted: (adoptedAt - began) / 1_000, ended: (endedAt - began) / 1_000 };
}

/** The first receipt of a body is sent when its call goes on. */
function takeOutcome(onAdopted: () => void, onEnded: () => void) {
  return ({ case: name, value }: WorkResponse["message"]) => {
    if (name === "receipt") onAdopted();
    if (name !== "ended") return;
    if (!value.recorded) throw new Error(`the call of ${value.assignment} was lost`);
    onEnded();
  };
}

function complete(worker: RawWorker, assignment: string): void {
  const outcome = { case: "completed", value: { output: "done" } } as const;
  worker.send({ case: "report", value: { assignment, report: { case: "result", value: { outcome } } } });
}

/** Makes calls without waiting for their ends. */
async function makeCalls(service: Toolgate, calls: number): Promise<void> {
  const client = service.connect("caller");
  for (let from = 0; from < calls; from += callsOfSession) {
    const sessionId = await openSession(client);
    const make = (_: unknown, index: number) =>
      client.connect(ToolService.method.callTool, {
        sessionId,
        callId: `call_${index}`,
        tool: "hold_0",
        input: {},
        waitMs: 0,
      });
    await Promise.all(Array.from({ length: Math.min(callsOfSession, calls - from) }, make));
  }
}

/** Counts up to a number, at which it is done. */
function counter(end: number) {
  const { promise, resolve } = Promise.withResolvers<void>();
  let count = 0;
  const add = () => {
    count += 1;
    if (count === end) resolve();
  };
  return { add, done: promise };
}
