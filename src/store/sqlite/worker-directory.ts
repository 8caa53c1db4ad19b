import { clone } from "@bufbuild/protobuf";
import { type WorkerProcess, WorkerProcessSchema } from "../../../gen/opencode/tool/v1/worker_service_pb.ts";
import { type WorkerDirectory, workerIdOf } from "../../core/worker-directory.ts";

/** Creates a directory in memory: no process outlives the only replica of this store as an entry of it. */
export function createMemoryDirectory(now: () => number): WorkerDirectory {
  const entries = new Map<string, WorkerProcess>();
  /** The end of each replica's entries. */
  const until = new Map<string, number>();

  function removeLapsed(): void {
    for (const [replica, time] of until) if (time <= now()) until.delete(replica);
    for (const [id, { replica }] of entries) if (!until.has(replica)) entries.delete(id);
  }

  return {
    async announceWorkers({ replica, processes, isAll, holdMs }) {
      removeLapsed();
      if (!isAll && !until.has(replica)) return false;
      until.set(replica, now() + holdMs);
      for (const process of processes) {
        const id = workerIdOf(process.principal, process.instanceId);
        if ((entries.get(id)?.connection ?? 0n) <= process.connection)
          entries.set(id, { ...clone(WorkerProcessSchema, process), replica });
      }
      return true;
    },
    async removeWorkers(replica) {
      until.delete(replica);
      removeLapsed();
    },
    async forgetWorker(process) {
      const id = workerIdOf(process.principal, process.instanceId);
      const known = entries.get(id);
      if (known?.connection === process.connection && known.replica === process.replica) entries.delete(id);
    },
    async listWorkers() {
      removeLapsed();
      return [...entries.values()];
    },
  };
}
