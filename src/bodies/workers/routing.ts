import { randomBytes } from "node:crypto";
import type { MessageInitShape } from "@bufbuild/protobuf";
import {
  WorkerAffinity,
  type WorkerCallSchema,
  type WorkerPlanned,
  type WorkerTool,
} from "../../../gen/opencode/tool/v1/worker_pb.ts";
import { workerIdOf } from "../../core/worker-directory.ts";
import { assignmentOf, type RemoteCall, type Reservation } from "../../tool/remote.ts";
import { markOf } from "./assignments.ts";
import { brings } from "./directory.ts";
import { refusalsOf, refuseBody } from "./refused-bodies.ts";
import type { RemoteHost } from "./remote-tool.ts";
import { serversOf, type WorkersState } from "./state.ts";
import { capacityFor, dismissDrained, keyOfCall, sendTo, type WorkerProcess } from "./worker-process.ts";

const maxSessions = 10_000;
const planMs = 10_000;
const maxPlans = 8;

/** Makes the part of a tool that finds its workers in a workspace. */
export function workersOfTool(
  state: WorkersState,
  {
    definitionId,
    declared,
    worker,
    workspace,
  }: { definitionId: () => string; declared: WorkerTool; worker: string; workspace: string },
): RemoteHost {
  const servers = () => serversOf(state, definitionId(), workspace);
  return {
    queueMs: declared.queueMs ?? 60_000,
    isClosed: state.isClosed,
    bodies: state.bodies,
    isLeaving: () => state.isDraining,
    reserve(call) {
      if (state.isDraining) return undefined;
      const process = pick(state, servers(), definitionId(), declared, call);
      return process && reserve(state, process, definitionId(), call);
    },
    isPaused: (call) => (state.refused.get(keyOfCall(call))?.paused.size ?? 0) > 0,
    refused: (process, call, reason) => refuseBody(state, process, call, reason),
    async unavailable(call) {
      const refusals = refusalsOf(state, call);
      if (refusals !== undefined)
        return `No worker took the call in time: ${refusals}. Look at the log of that worker, or start another one`;
      const known = await state.directory.list().catch(() => []);
      const own = known.filter((process) => brings(process, definitionId()));
      const seen = Math.max(state.definitions.lastSeen(definitionId()), ...own.map((process) => process.seen));
      const when = own.some(({ connected }) => connected)
        ? "is busy"
        : `is not connected; it was last seen at ${new Date(seen).toISOString()}`;
      return `No worker took the call in time, so it was not run: the fleet "${worker}" ${when}. Try again later, or start a worker`;
    },
    processOf: ({ mark }) => state.processes.get(workerIdOf(mark.principal, mark.instance)),
    async plan(call) {
      const process = servers().find(({ link, plans }) => link && plans.size < maxPlans);
      return process && (await planBy(process, call));
    },
  };
}

function pick(
  { lastOf, refused }: WorkersState,
  servers: readonly WorkerProcess[],
  definitionId: string,
  { affinity, name }: WorkerTool,
  call: RemoteCall,
): WorkerProcess | undefined {
  const last = affinity === WorkerAffinity.PREFER_SESSION ? lastOf.get(call.sessionId) : undefined;
  const paused = refused.get(keyOfCall(call))?.paused;
  let best: { process: WorkerProcess; capacity: number } | undefined;
  for (const process of servers) {
    const { principal, hello } = process;
    const capacity = capacityFor(process, definitionId, name);
    if (capacity <= 0 || paused?.has(process)) continue;
    if (last !== undefined && workerIdOf(principal, hello.instanceId) === last) return process;
    const newer = best === undefined ? 1n : hello.generation - best.process.hello.generation;
    if (newer > 0n || (newer === 0n && capacity > (best?.capacity ?? 0))) best = { process, capacity };
  }
  return best?.process;
}

function reserve(state: WorkersState, process: WorkerProcess, definitionId: string, call: RemoteCall): Reservation {
  const assignment = assignmentOf(randomBytes(16).toString("base64url"), call);
  const { taken, hello } = process;
  taken.set(assignment, definitionId);
  state.lastOf.delete(call.sessionId);
  state.lastOf.set(call.sessionId, workerIdOf(process.principal, hello.instanceId));
  const [oldest] = state.lastOf.keys();
  if (state.lastOf.size > maxSessions && oldest !== undefined) state.lastOf.delete(oldest);
  return {
    mark: markOf(process, assignment),
    worker: hello.worker,
    buildId: hello.buildId,
    free() {
      if (taken.delete(assignment)) state.calls.takeQueued();
      dismissDrained(process);
    },
  };
}

/** Lets a worker plan a call; undefined if it does not answer in time. */
async function planBy(
  process: WorkerProcess,
  call: MessageInitShape<typeof WorkerCallSchema>,
): Promise<WorkerPlanned | undefined> {
  const { promise, resolve } = Promise.withResolvers<WorkerPlanned | undefined>();
  const planId = randomBytes(16).toString("base64url");
  process.plans.set(planId, resolve);
  const timer = setTimeout(() => resolve(undefined), planMs);
  sendTo(process, { case: "plan", value: { planId, call } });
  return await promise.finally(() => {
    clearTimeout(timer);
    process.plans.delete(planId);
  });
}
