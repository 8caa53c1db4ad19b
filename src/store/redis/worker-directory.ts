import { fromBinary, toBinary } from "@bufbuild/protobuf";
import { type WorkerProcess, WorkerProcessSchema } from "../../../gen/opencode/tool/v1/worker_service_pb.ts";
import { type AnnouncedWorkers, type WorkerDirectory, workerIdOf } from "../../core/worker-directory.ts";
import type { Keys } from "./keys.ts";
import type { Link } from "./link.ts";
import { pairs, texts } from "./reply.ts";

/** Processes that one script stores, so that none holds up Redis for long. */
const maxPerStep = 100;

/** Creates the directory in a hash that all replicas share. */
export function createRedisDirectory({ link, keys }: { link: Link; keys: Keys }): WorkerDirectory {
  const { workers, workerReplicas: replicas } = keys;

  async function announce({ replica, processes, fresh, isAll, holdMs }: AnnouncedWorkers) {
    const connections = Object.fromEntries(
      processes.map((each) => [workerIdOf(each.principal, each.instanceId), Number(each.connection)]),
    );
    const isFresh = Object.fromEntries([...fresh].map((id) => [id, true]));
    const entries = processes.map((each) => [
      workerIdOf(each.principal, each.instanceId),
      toBinary(WorkerProcessSchema, each),
    ]);
    const values = { replica, holdMs, isAll, connections, fresh: isFresh };
    const outcome = await link.run("announce_workers", { workers, replicas }, values, Object.fromEntries(entries));
    const [result, ...staying] = texts(outcome);
    return result === "announced" ? staying.map((entry) => entry.split("\n")) : undefined;
  }

  return {
    async announceWorkers({ processes, ...fields }) {
      const staying = new Map<string, number>();
      for (let start = 0; start === 0 || start < processes.length; start += maxPerStep) {
        const some = await announce({ ...fields, processes: processes.slice(start, start + maxPerStep) });
        if (some === undefined) return undefined;
        for (const [id = "", connection] of some) staying.set(id, Number(connection));
      }
      return staying;
    },
    async removeWorkers(replica) {
      await announce({ replica, processes: [], fresh: new Set(), isAll: true, holdMs: 0 });
    },
    async forgetWorker(process) {
      const { replica, connection } = process;
      const values = { id: workerIdOf(process.principal, process.instanceId), replica, connection: Number(connection) };
      await link.run("forget_worker", { workers }, values);
    },
    async listWorkers() {
      const living = new Set(texts(await link.command("zrangebyscore", replicas, `(${link.now()}`, "+inf")));
      const [entries] = await link.hashes(workers);
      return pairs(entries)
        .map(([, entry]) => readEntry(entry))
        .filter(({ replica }) => living.has(replica));
    },
  };
}

/** Reads an entry: the connection, the replica, and the message, with a space after each of the first two. */
function readEntry(entry: Buffer): WorkerProcess {
  const connectionEnd = entry.indexOf(" ");
  const replicaEnd = entry.indexOf(" ", connectionEnd + 1);
  const process = fromBinary(WorkerProcessSchema, entry.subarray(replicaEnd + 1));
  return { ...process, replica: String(entry.subarray(connectionEnd + 1, replicaEnd)) };
}
