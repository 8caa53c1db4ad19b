import type { WorkerService } from "../../../gen/opencode/tool/v1/worker_service_pb.ts";
import { fleetOrder } from "../../bodies/workers/directory.ts";
import type { Workers } from "../../bodies/workers/workers.ts";
import { pageByKey } from "./paging.ts";
import type { ServiceFunctions } from "./rpc.ts";

/** Domain that WorkerService works on. */
export interface WorkerServiceDomain {
  workers: Pick<Workers, "connect" | "listAll">;
}

/** Returns the functions of WorkerService. */
export function workerService({ workers }: WorkerServiceDomain): ServiceFunctions<typeof WorkerService> {
  return {
    async *work(requests, { principal, signal }) {
      for await (const message of workers.connect(principal, requests, signal)) yield { message };
    },
    async listWorkers(request) {
      const { workers: all, fleets } = await workers.listAll();
      const { page, nextPageToken } = pageByKey(all, fleetOrder, request);
      return { workers: page, nextPageToken, fleets: request.pageToken === "" ? fleets : [] };
    },
  };
}
