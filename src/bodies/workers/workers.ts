import { randomBytes } from "node:crypto";
import { create, type MessageInitShape } from "@bufbuild/protobuf";
import {
  WorkerAffinity,
  type WorkerCallSchema,
  type WorkerPlanned,
  type WorkerTool,
  type WorkRequest,
} from "../../../gen/opencode/tool/v1/worker_pb.ts";
import {
  type WorkerProcess as ListedWorker,
  type WorkerFleet,
  WorkerFleetSchema,
} from "../../../gen/opencode/tool/v1/worker_service_pb.ts";
import type { Principal } from "../../core/principal.ts";
import { workerIdOf } from "../../core/worker-directory.ts";
import { assignmentOf, type RemoteCall, type RemoteMark, type Reservation } from "../../tool/remote.ts";
import type { WorkerMessage } from "../worker-connection.ts";
import { markOf, probe } from "./assignments.ts";
import { connectWorker, endSuperseded } from "./connections.ts";
import { createDefinitions, type DeclaredFleet } from "./definitions.ts";
import { brings, createDirectory, entryOf } from "./directory.ts";
import { leavingReplica } from "./refusals.ts";
import { endBody } from "./remote-body.ts";
import type { RemoteHost } from "./remote-tool.ts";
import { serversOf, type WorkersParts, type WorkersState } from "./state.ts";
import { capacityFor, dismissDrained, keyOfCall, sendTo, type WorkerProcess } from "./worker-process.ts";

/** The workers of one replica. */
export type Workers = ReturnType<typeof createWorkers>;

/** Age from which the last sign of connected workers is stored again, for the case that this replica is killed. */
const seenMs = 300_000;

/** Creates the workers of a replica, with the tools that are stored. */
export function createWorkers(parts: WorkersParts) {
  const state: WorkersState = {
    ...parts,
    ...{ processes: new Map(), servers: new Map(), bodies: new Map(), lastOf: new Map(), refused: new Map() },
    isDraining: false,
    definitions: createDefinitions({
      ...parts,
      hostOf: (definitionId, declared, worker, workspace) =>
        workersOfTool(state, { definitionId, declared, worker, workspace }),
      isServed: (definitionId, workspace) =>
        serversOf(state, definitionId, workspace).some(({ link, isDraining }) => link !== undefined && !isDraining),
    }),
    directory: createDirectory({
      ...{ store: parts.workerDirectory, replica: parts.replicaId, now: parts.now, log: parts.log },
      processes: () => state.processes.values(),
      superseded(id, connection) {
        const process = state.processes.get(id);
        if (process) endSuperseded(state, process, connection);
      },
    }),
  };
  state.definitions.update();
  return {
    /** Serves one connection of a worker. */
    connect: (
      principal: Principal,
      requests: AsyncIterable<WorkRequest>,
      signal: AbortSignal,
    ): AsyncGenerator<WorkerMessage> => connectWorker(state, principal, requests, signal),
    /** Returns the tool of a definition, also while another one serves under its name. */
    tool: state.definitions.tool,
    /** True if a worker with a definition is connected to some replica. */
    isServed: async (definitionId: string): Promise<boolean> =>
      (await state.directory.list()).some((process) => process.connected && brings(process, definitionId)),
    /** Asks a worker, if it is connected here, about a started call whose replica was lost. */
    orphan: (call: RemoteCall, mark: RemoteMark): void => probe(state, call, mark),
    /** Called when this replica has recorded the end of a call. */
    ended(call: RemoteCall): void {
      state.refused.delete(keyOfCall(call));
      const body = state.bodies.get(keyOfCall(call));
      if (body === undefined) return;
      endBody(body);
      dismissDrained(body.process);
    },
    /** Registers the tools of stored declarations as they are now. */
    async refresh(): Promise<void> {
      await parts.declarations.refresh();
      state.definitions.update();
    },
    /** Announces the processes of this replica to the others; to be called every few seconds. */
    async announce(): Promise<void> {
      await state.directory.announce();
      for (const [principal, definitions] of connectedDefinitions(state))
        await state.definitions.seen(principal, definitions, seenMs);
    },
    /** Returns the processes that are connected to this replica, or that may return. */
    list: (): readonly ListedWorker[] =>
      [...state.processes.values()].map((process) => entryOf(process, parts.replicaId)),
    /** Returns the processes of all replicas, and the fleets. */
    async listAll(): Promise<{ workers: ListedWorker[]; fleets: WorkerFleet[] }> {
      const workers = await state.directory.list();
      return { workers, fleets: fleetsOf(state, workers) };
    },
    /** Accepts no more connections, and lets workers connect elsewhere. */
    drain(withinMs: number): void {
      state.isDraining = true;
      for (const process of state.processes.values())
        sendTo(process, { case: "leave", value: { stop: false, withinMs } });
    },
    /** Forgets all workers; their calls stay as they are. */
    async close(): Promise<void> {
      state.isDraining = true;
      for (const { link, timer } of state.processes.values()) {
        clearTimeout(timer);
        link?.end(leavingReplica());
      }
      state.processes.clear();
      state.servers.clear();
      await state.directory
        .leave()
        .catch((error: unknown) => parts.log.warn("the workers of this replica are listed for a while", { error }));
    },
  };
}

/** Returns the definitions that connected workers bring, by principal. */
function connectedDefinitions({ processes }: WorkersState): ReadonlyMap<string, ReadonlySet<string>> {
  const connected = [...processes.values()].filter(({ link }) => link !== undefined);
  const byPrincipal = Map.groupBy(connected, ({ principal }) => principal);
  return new Map(
    [...byPrincipal].map(([principal, own]) => [
      principal,
      new Set(own.flatMap(({ definitions }) => [...definitions])),
    ]),
  );
}

/** Returns the fleets: those of the stored declarations, and those of which no tool could be registered. */
function fleetsOf({ definitions, calls }: WorkersState, workers: readonly ListedWorker[]): WorkerFleet[] {
  const fleets = new Map(definitions.fleets().map((fleet) => [keyOf(fleet), fleet]));
  for (const each of workers) {
    const { worker, principal, seen } = each;
    const known: DeclaredFleet = fleets.get(keyOf(each)) ?? { worker, principal, definitions: [], seen };
    fleets.set(keyOf(each), { ...known, seen: Math.max(known.seen, seen) });
  }
  return [...fleets]
    .toSorted(([one], [other]) => (one < other ? -1 : 1))
    .map(([, { worker, principal, definitions: own, seen }]) =>
      create(WorkerFleetSchema, {
        ...{ worker, principal, seen },
        tools: [...new Set(own.map(({ name }) => name))].toSorted(),
        waiting: [...new Set(own.map(({ id }) => id))].reduce((sum, id) => sum + calls.countQueued(id), 0),
      }),
    );
}

const keyOf = ({ worker, principal }: Pick<DeclaredFleet, "worker" | "principal">) => `${worker} ${principal}`;

const maxSessions = 10_000;
const planMs = 10_000;
const maxPlans = 8;

/** Makes the part of a tool that finds its workers in a workspace. */
function workersOfTool(
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

const maxCalls = 10_000;
const firstPauseMs = 1_000;
const maxPauseMs = 60_000;

/** Remembers that a process did not enter the body of a call: it is offered the call again after a pause, which doubles each time. */
function refuseBody(state: WorkersState, process: WorkerProcess, call: RemoteCall, reason: string): void {
  const { refused } = state;
  const key = keyOfCall(call);
  const known = refused.get(key) ?? { counts: new Map(), paused: new Set(), last: "" };
  const { worker, instanceId } = process.hello;
  known.last = `the worker "${worker}" (${instanceId}) did not enter its body and reported "${reason}"`;
  const count = (known.counts.get(process) ?? 0) + 1;
  known.counts.set(process, count);
  known.paused.add(process);
  refused.delete(key);
  refused.set(key, known);
  const [oldest] = refused.keys();
  if (refused.size > maxCalls && oldest !== undefined) refused.delete(oldest);
  setTimeout(
    () => {
      known.paused.delete(process);
      if (!state.isDraining) state.calls.takeQueued();
    },
    Math.min(firstPauseMs * 2 ** (count - 1), maxPauseMs),
  ).unref();
}

/** Describes the refusals of a call; undefined if there are none. */
function refusalsOf({ refused }: WorkersState, call: RemoteCall): string | undefined {
  const known = refused.get(keyOfCall(call));
  if (known === undefined) return undefined;
  const count = [...known.counts.values()].reduce((sum, each) => sum + each, 0);
  return `it was offered ${count} times, and at last ${known.last}`;
}
