import type { WorkerService } from "../../../gen/opencode/tool/v1/worker_service_pb.ts";
import type { WorkerProcess } from "../../worker/worker-process.ts";
import type { Workers } from "../../worker/workers.ts";
import type { ServiceFunctions } from "./rpc.ts";

/** Domain that WorkerService works on. */
export interface WorkerServiceDomain {
  workers: Pick<Workers, "connect" | "list">;
}

/** Returns the functions of WorkerService. */
export function workerService({ workers }: WorkerServiceDomain): ServiceFunctions<typeof WorkerService> {
  return {
    async *work(requests, { principal, signal }) {
      for await (const message of workers.connect(principal, requests, signal)) yield { message };
    },
    listWorkers: () => ({ workers: workers.list().map(shownProcess) }),
  };
}

/** Returns a process as overseers see it. */
export function shownProcess({
  hello,
  principal,
  workspaces,
  tools,
  capacity,
  taken,
  isDraining,
  link,
  seen,
}: WorkerProcess) {
  const { instanceId, worker, buildId, generation, sdk } = hello;
  return {
    ...{ instanceId, worker, buildId, generation, sdk, principal, tools: [...tools], capacity, seen },
    workspaces: [...workspaces],
    running: taken.size,
    draining: isDraining,
    connected: link !== undefined,
  };
}
