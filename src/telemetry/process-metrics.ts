import { readdirSync } from "node:fs";
import { monitorEventLoopDelay } from "node:perf_hooks";
import { type Family, single } from "./families.ts";

/** Creates the metrics of this process, under the names that Prometheus clients use, and `toolgate_build_info`. */
export function createProcessMetrics({ version, store }: { version: string; store: string }) {
  const lag = monitorEventLoopDelay({ resolution: 20 });
  lag.enable();
  const started = performance.timeOrigin / 1_000;

  return {
    /** Returns the metrics; the lag of the event loop is that since the last call. */
    families(): Family[] {
      const { user, system } = process.cpuUsage();
      const [mean, p99, max] = [lag.mean || 0, lag.percentile(99), lag.max];
      lag.reset();
      const openFiles = openFileCount();
      return [
        {
          name: "toolgate_build_info",
          type: "gauge",
          help: "Version of Toolgate and of Node, and the kind of store; always 1.",
          samples: [`{version="${version}",node="${process.versions.node}",store="${store}"} 1`],
        },
        single("process_start_time_seconds", "gauge", "Start of the process, in seconds since the epoch.", started),
        single("process_cpu_seconds_total", "counter", "CPU time of the process.", (user + system) / 1_000_000),
        single("process_resident_memory_bytes", "gauge", "Resident memory of the process.", process.memoryUsage.rss()),
        ...(openFiles === undefined
          ? []
          : [single("process_open_fds", "gauge", "Open file descriptors of the process.", openFiles)]),
        {
          name: "nodejs_eventloop_lag_seconds",
          type: "gauge",
          help: "Delay of the event loop since the last scrape.",
          samples: Object.entries({ mean, p99, max }).map(([stat, value]) => `{stat="${stat}"} ${seconds(value)}`),
        },
      ];
    },
    close: () => lag.disable(),
  };
}

/** Converts nanoseconds; a histogram without values has none. */
const seconds = (nanoseconds: number) => (Number.isFinite(nanoseconds) ? Math.max(0, nanoseconds) / 1e9 : 0);

function openFileCount(): number | undefined {
  try {
    return readdirSync("/proc/self/fd").length;
  } catch {
    return undefined;
  }
}
