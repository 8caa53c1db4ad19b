import type { ServiceLog } from "../core/logger.ts";
import type { Family } from "./families.ts";

/** Returns the metrics of the log itself; none for a logger that does not count. */
export function logFamilies({ dropped }: Partial<Pick<ServiceLog, "dropped">>): Family[] {
  if (dropped === undefined) return [];
  return [
    {
      name: "toolgate_log_dropped_total",
      type: "counter",
      help: "Log lines that a full disk or a stalled reader of stderr could not take, by target.",
      samples: Object.entries(dropped()).map(([target, count]) => `{target="${target}"} ${count}`),
    },
  ];
}
