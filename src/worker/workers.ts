import type { WorkRequest } from "../../gen/opencode/tool/v1/worker_pb.ts";
import type { Principal } from "../core/principal.ts";
import type { RemoteCall, RemoteMark } from "../tool/remote.ts";
import type { Tool } from "../tool/tool.ts";
import type { WorkerMessage } from "../tool/worker/worker-connection.ts";
import { probe } from "./assignments.ts";
import { connectWorker } from "./connections.ts";
import { createDefinitions } from "./definitions.ts";
import { leavingReplica } from "./refusals.ts";
import { endBody } from "./remote-body.ts";
import { workersOfTool } from "./routing.ts";
import type { WorkersParts, WorkersState } from "./state.ts";
import { sendTo, type WorkerProcess } from "./worker-process.ts";

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
  /** Asks a worker, if it is connected here, about a started call whose replica was lost. */
  orphan(call: RemoteCall, mark: RemoteMark): void;
  /** Called when this replica has recorded the end of a call. */
  ended(call: RemoteCall): void;
  /** Registers the tools of stored declarations as they are now. */
  refresh(): Promise<void>;
  /** Processes that are connected to this replica, or that may return. */
  list(): readonly WorkerProcess[];
  /** Accepts no more connections, and lets workers connect elsewhere. */
  drain(withinMs: number): void;
  /** Forgets all workers; their calls stay as they are. */
  close(): void;
}

/** Creates the workers of a replica, with the tools that are stored. */
export function createWorkers(parts: WorkersParts): Workers {
  const state: WorkersState = {
    ...parts,
    ...{ processes: new Map(), lastOf: new Map(), isDraining: false },
    definitions: createDefinitions({
      ...parts,
      hostOf: (definitionId, declared, worker, workspace) =>
        workersOfTool(state, { definitionId, declared, worker, workspace }),
      isServed: (definitionId, workspace) =>
        [...state.processes.values()].some(
          ({ link, isDraining, definitions, workspaces }) =>
            link !== undefined && !isDraining && definitions.has(definitionId) && workspaces.has(workspace),
        ),
    }),
  };
  state.definitions.update();
  return {
    connect: (principal, requests, signal) => connectWorker(state, principal, requests, signal),
    tool: state.definitions.tool,
    orphan: (call, mark) => probe(state, call, mark),
    ended: ({ sessionId, callId }) => {
      for (const { bodies } of state.processes.values())
        for (const body of bodies.values())
          if (body.ctx.sessionId === sessionId && body.ctx.callId === callId) endBody(body);
    },
    async refresh() {
      await parts.declarations.refresh();
      state.definitions.update();
    },
    list: () => [...state.processes.values()],
    drain(withinMs) {
      state.isDraining = true;
      for (const process of state.processes.values())
        sendTo(process, { case: "leave", value: { stop: false, withinMs } });
    },
    close() {
      state.isDraining = true;
      for (const { link, timer } of state.processes.values()) {
        clearTimeout(timer);
        link?.end(leavingReplica());
      }
      state.processes.clear();
    },
  };
}
