import type { WorkRequest } from "../../../gen/opencode/tool/v1/worker_pb.ts";
import type { WorkerProcess as ListedWorker, WorkerFleet } from "../../../gen/opencode/tool/v1/worker_service_pb.ts";
import type { Principal } from "../../core/principal.ts";
import type { RemoteCall, RemoteMark } from "../../tool/remote.ts";
import type { Tool } from "../../tool/tool.ts";
import type { WorkerMessage } from "../worker-connection.ts";
import { probe } from "./assignments.ts";
import { connectWorker } from "./connections.ts";
import { createDefinitions } from "./definitions.ts";
import { brings, createDirectory, entryOf } from "./directory.ts";
import { fleetsOf } from "./fleets.ts";
import { leavingReplica } from "./refusals.ts";
import { endBody } from "./remote-body.ts";
import { workersOfTool } from "./routing.ts";
import { serversOf, type WorkersParts, type WorkersState } from "./state.ts";
import { dismissDrained, keyOfCall, sendTo } from "./worker-process.ts";

/** The workers of one replica. */
export interface Workers {
  /** Serves one connection of a worker. */
  connect(
    principal: Principal,
    requests: AsyncIterable<WorkRequest>,
    signal: AbortSignal,
  ): AsyncGenerator<WorkerMessage>;
  /** Returns the tool of a definition, also while another one serves under its name. */
  tool(definitionId: string, workspace: string): Tool | undefined;
  /** True if a worker with a definition is connected to some replica. */
  isServed(definitionId: string): Promise<boolean>;
  /** Asks a worker, if it is connected here, about a started call whose replica was lost. */
  orphan(call: RemoteCall, mark: RemoteMark): void;
  /** Called when this replica has recorded the end of a call. */
  ended(call: RemoteCall): void;
  /** Registers the tools of stored declarations as they are now. */
  refresh(): Promise<void>;
  /** Announces the processes of this replica to the others; to be called every few seconds. */
  announce(): Promise<void>;
  /** Returns the processes that are connected to this replica, or that may return. */
  list(): readonly ListedWorker[];
  /** Returns the processes of all replicas, and the fleets. */
  listAll(): Promise<{ workers: ListedWorker[]; fleets: WorkerFleet[] }>;
  /** Accepts no more connections, and lets workers connect elsewhere. */
  drain(withinMs: number): void;
  /** Forgets all workers; their calls stay as they are. */
  close(): Promise<void>;
}

/** Age from which the last sign of connected workers is stored again, for the case that this replica is killed. */
const seenMs = 300_000;

/** Creates the workers of a replica, with the tools that are stored. */
export function createWorkers(parts: WorkersParts): Workers {
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
    }),
  };
  state.definitions.update();
  return {
    connect: (principal, requests, signal) => connectWorker(state, principal, requests, signal),
    tool: state.definitions.tool,
    isServed: async (definitionId) =>
      (await state.directory.list()).some((process) => process.connected && brings(process, definitionId)),
    orphan: (call, mark) => probe(state, call, mark),
    ended(call) {
      state.refused.delete(keyOfCall(call));
      const body = state.bodies.get(keyOfCall(call));
      if (body === undefined) return;
      endBody(body);
      dismissDrained(body.process);
    },
    async refresh() {
      await parts.declarations.refresh();
      state.definitions.update();
    },
    async announce() {
      await state.directory.announce();
      for (const [principal, definitions] of connectedDefinitions(state))
        await state.definitions.seen(principal, definitions, seenMs);
    },
    list: () => [...state.processes.values()].map((process) => entryOf(process, parts.replicaId)),
    async listAll() {
      const workers = await state.directory.list();
      return { workers, fleets: fleetsOf(state, workers) };
    },
    drain(withinMs) {
      state.isDraining = true;
      for (const process of state.processes.values())
        sendTo(process, { case: "leave", value: { stop: false, withinMs } });
    },
    async close() {
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
