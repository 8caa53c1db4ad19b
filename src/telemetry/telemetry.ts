import type { CallObserver } from "../call/observer.ts";
import type { Store } from "../call/ports.ts";
import type { Logger, ServiceLog } from "../core/logger.ts";
import { createAgentMetrics } from "./agent-metrics.ts";
import { logEnd } from "./call-log.ts";
import { formatFamilies, single } from "./families.ts";
import { logFamilies } from "./log-metrics.ts";
import { createMetrics, type ToolTally } from "./metrics.ts";
import { createProcessMetrics } from "./process-metrics.ts";
import { requestFamilies } from "./request-metrics.ts";
import { createStoreMetrics } from "./store-metrics.ts";

/** Log lines, metrics and spans of this replica's calls. */
export interface Telemetry {
  observer: CallObserver;
  /** The store with its steps measured. */
  store: Store;
  /** Returns the metrics in the text format of Prometheus. */
  metrics(): Promise<string>;
  /** Returns the counters since this replica started, at `since` (ms since the epoch). */
  stats(): { since: number; tools: ToolTally[] };
  /** Exports the remaining spans. */
  close(): Promise<void>;
}

/** Creates the telemetry; without `tracing` no span is created and OpenTelemetry is not loaded. */
export async function createTelemetry({
  log,
  version,
  tracing,
  store,
}: {
  log: Logger & Partial<Pick<ServiceLog, "dropped">>;
  version: string;
  tracing: boolean;
  store: Store;
}): Promise<Telemetry> {
  const since = Date.now();
  const metrics = createMetrics();
  const agents = createAgentMetrics();
  const steps = createStoreMetrics();
  const ownProcess = createProcessMetrics({ version, store: store.calls.isShared ? "redis" : "sqlite" });
  let runningCount = 0;
  const spans = tracing ? (await import("./spans.ts")).createSpans({ version, log }) : undefined;
  return {
    observer: {
      began(call, wait) {
        const span = spans?.began(call, wait);
        return {
          async step(name, work) {
            if (name === "execute") runningCount += 1;
            try {
              // Without tracing, the caller's trace context is passed on unchanged.
              return span ? await span.step(name, work) : await work(call.spec.trace);
            } finally {
              if (name === "execute") runningCount -= 1;
            }
          },
          over: (part) => span?.over(part),
        };
      },
      ended(end) {
        metrics.ended(end);
        agents.ended(end.part);
        logEnd(log, end.part);
      },
      waited: metrics.waited,
    },
    store: steps.measure(store),
    async metrics() {
      const requests = await requestFamilies({
        countOpenAsks: store.permissions.countOpenAsks,
        now: store.calls.now,
      });
      const running = single("toolgate_running_calls", "gauge", "Calls whose body runs on this replica.", runningCount);
      const families = [
        ...requests,
        running,
        ...agents.families(),
        ...steps.families(await store.calls.sizes().catch(() => ({}))),
        ...logFamilies(log),
        ...ownProcess.families(),
      ];
      return metrics.text() + formatFamilies(families);
    },
    stats: () => ({ since, tools: metrics.stats() }),
    async close() {
      ownProcess.close();
      await spans?.close();
    },
  };
}
