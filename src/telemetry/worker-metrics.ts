import type { WorkerProcess } from "../../gen/opencode/tool/v1/worker_service_pb.ts";
import { type Family, formatFamilies } from "./families.ts";

/** Returns the metrics of the workers of this replica, by fleet. */
export function workerMetrics(
  processes: readonly Pick<WorkerProcess, "worker" | "connected" | "capacity" | "running" | "draining">[],
): string {
  const fleets = Map.groupBy(processes, ({ worker }) => worker);
  if (fleets.size === 0) return "";
  const family = (name: string, help: string, measure: (process: (typeof processes)[number]) => number): Family => ({
    ...{ name, help, type: "gauge" },
    // The pattern of the name leaves nothing to escape.
    samples: [...fleets].map(
      ([worker, each]) => `{worker="${worker}"} ${each.reduce((sum, process) => sum + measure(process), 0)}`,
    ),
  });
  return formatFamilies([
    family("toolgate_workers_connected", "Connected worker processes.", ({ connected }) => Number(connected)),
    family(
      "toolgate_worker_capacity",
      "Bodies that connected workers run at a time.",
      ({ connected, capacity, draining }) => (connected && !draining ? capacity : 0),
    ),
    family("toolgate_worker_running", "Bodies that workers run.", ({ running }) => running),
  ]);
}
