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
    async announceWorkers({ replica, processes, fresh, isAll, holdMs }) {
      removeLapsed();
      if (!isAll && !until.has(replica)) return undefined;
      until.set(replica, now() + holdMs);
      const staying = new Map<string, number>();
      for (const process of processes) {
        const id = workerIdOf(process.principal, process.instanceId);
        const { connection: last, replica: owner } = entries.get(id) ?? { connection: 0n, replica };
        const isLater = owner === replica || fresh.has(id);
        if (last < process.connection || (last === process.connection && isLater))
          entries.set(id, { ...clone(WorkerProcessSchema, process), replica });
        else if (owner !== replica) staying.set(id, Number(last));
      }
      return staying;
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
