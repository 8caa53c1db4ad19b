import type { WorkerProcess } from "../../gen/opencode/tool/v1/worker_service_pb.ts";

/** The worker processes of all replicas, in the store: each replica announces its own. */
export interface WorkerDirectory {
  /**
   * Stores processes of a replica, whose entries are listed for `holdMs` from now. An entry with a higher connection stays, and so
   * does one of another replica with the same connection, unless the announced one is fresh. Returns the connections that stay at
   * other replicas, by process ID; undefined, and stores nothing, if the store has nothing of the replica and these are not all of its
   * processes.
   */
  announceWorkers(announced: AnnouncedWorkers): Promise<ReadonlyMap<string, number> | undefined>;
  /** Removes the processes of a replica that stops. */
  removeWorkers(replica: string): Promise<void>;
  /** Removes a process; one that has connected again, or to another replica, stays. */
  forgetWorker(process: WorkerProcess): Promise<void>;
  /** Returns the processes of all replicas that announced themselves in time. */
  listWorkers(): Promise<WorkerProcess[]>;
}

/** Processes as a replica announces them. */
export interface AnnouncedWorkers {
  replica: string;
  processes: readonly WorkerProcess[];
  /** IDs of the processes whose connection was not announced before. */
  fresh: ReadonlySet<string>;
  /** True if the replica has no others. */
  isAll: boolean;
  holdMs: number;
}

/** Returns the ID of a process, which contains its principal: another one may choose the same instance ID. */
export function workerIdOf(principal: string, instance: string): string {
  return `${principal} ${instance}`;
}

/** Checks if a process exists that is not this one. The service of a container has the id of the one before it, so its own id counts as ended. */
export function isOtherProcessAlive(pid: number): boolean {
  if (pid === process.pid) return false;
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return error instanceof Error && "code" in error && error.code === "EPERM";
  }
}
