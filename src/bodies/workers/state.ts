import type { WorkerDeclaration } from "../../../gen/opencode/tool/v1/worker_service_pb.ts";
import type { Logger } from "../../core/logger.ts";
import type { WorkerRights } from "../../core/principal.ts";
import type { RecordTable } from "../../core/record-table.ts";
import type { WorkerDirectory } from "../../core/worker-directory.ts";
import type { Registry } from "../../tool/registry.ts";
import type { RemoteCall, RemoteMark } from "../../tool/remote.ts";
import type { IsClosed } from "./declared-tool.ts";
import type { Definitions } from "./definitions.ts";
import type { Directory } from "./directory.ts";
import type { RemoteBody, WorkerProcess } from "./worker-process.ts";

/** Steps of the engine that workers cause. */
export interface WorkerCalls {
  /** Continues a started call here, whose body a worker holds. */
  adopt(call: RemoteCall, mark: RemoteMark): Promise<"adopted" | "ended" | "foreign">;
  /** Starts a call again whose body was never entered. */
  restartUnentered(call: RemoteCall, mark: RemoteMark): Promise<boolean>;
  /** Claims calls that wait for capacity. */
  takeQueued(): void;
  /** Returns the number of calls that wait for a worker with a definition, at any replica. */
  countQueued(definitionId: string): number;
}

/** Parts of a replica that workers need. */
export interface WorkersParts {
  registry: Pick<Registry, "get" | "register" | "refresh">;
  declarations: RecordTable<WorkerDeclaration>;
  /** Where all replicas announce their processes, and the ID of this one. */
  workerDirectory: WorkerDirectory;
  replicaId: string;
  calls: WorkerCalls;
  rightsOf(principal: string): WorkerRights | undefined;
  isClosed: IsClosed;
  /** Names of all workspaces. */
  workspaces: readonly string[];
  storeId(): string;
  /** Reads the id from the store again; throws STORE_UNAVAILABLE if it does not answer. */
  verifyStoreId(): Promise<void>;
  beatMs: number;
  now(): number;
  log: Logger;
}

/** Processes that answered the start of a call with `not_entered`. */
export interface RefusedBody {
  /** Number of refusals, by process. */
  readonly counts: Map<WorkerProcess, number>;
  /** Processes that are not offered the call now. */
  readonly paused: Set<WorkerProcess>;
  /** The process that refused last, and its reason. */
  last: string;
}

/** State of the workers of one replica. */
export interface WorkersState extends WorkersParts {
  readonly processes: Map<string, WorkerProcess>;
  /** Processes by the ID of each definition that they serve. */
  readonly servers: Map<string, Set<WorkerProcess>>;
  /** Bodies by the call that they run for; see `keyOfCall`. */
  readonly bodies: Map<string, RemoteBody>;
  /** Process of the last call of a session, for tools that prefer it. */
  readonly lastOf: Map<string, string>;
  /** Calls of which a process did not enter the body; see `keyOfCall`. */
  readonly refused: Map<string, RefusedBody>;
  readonly definitions: Definitions;
  readonly directory: Directory;
  isDraining: boolean;
}

/** Replaces the definitions that a process serves; none for a process that is lost. */
export function setDefinitions({ servers }: WorkersState, process: WorkerProcess, next: ReadonlySet<string>): void {
  for (const id of process.definitions) {
    const same = servers.get(id);
    same?.delete(process);
    if (same?.size === 0) servers.delete(id);
  }
  process.definitions = next;
  for (const id of next) {
    const same = servers.get(id) ?? new Set();
    servers.set(id, same.add(process));
  }
}

/** Returns the processes that serve a definition in a workspace. */
export function serversOf({ servers }: WorkersState, definitionId: string, workspace: string): WorkerProcess[] {
  return [...(servers.get(definitionId) ?? [])].filter(({ workspaces }) => workspaces.has(workspace));
}
