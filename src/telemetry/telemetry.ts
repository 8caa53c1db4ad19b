import type { CallObserver } from "../call/observer.ts";
import type { Logger, ServiceLog } from "../core/logger.ts";
import { logEnd } from "./call-log.ts";
import { formatFamilies } from "./families.ts";
import { logFamilies } from "./log-metrics.ts";
import { createMetrics, type ToolTally } from "./metrics.ts";

/** Log lines, metrics and spans of this replica's calls. */
export interface Telemetry {
  observer: CallObserver;
  /** Returns the metrics in the text format of Prometheus. */
  metrics(): string;
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
}: {
  log: Logger & Partial<Pick<ServiceLog, "dropped">>;
  version: string;
  tracing: boolean;
}): Promise<Telemetry> {
  const since = Date.now();
  const metrics = createMetrics();
  const spans = tracing ? (await import("./spans.ts")).createSpans({ version, log }) : undefined;
  return {
    observer: {
      began(call) {
        const span = spans?.began(call);
        return {
          async step(name, work) {
            const began = performance.now();
            try {
              // Without tracing, the caller's trace context is passed on unchanged.
              return span ? await span.step(name, work) : await work(call.spec.trace);
            } finally {
              if (name === "wait") metrics.waited(call.part.tool, performance.now() - began);
            }
          },
          over: (part) => span?.over(part),
        };
      },
      ended(end) {
        metrics.ended(end);
        logEnd(log, end.part);
      },
    },
    metrics: () => metrics.text() + formatFamilies(logFamilies(log)),
    stats: () => ({ since, tools: metrics.stats() }),
    async close() {
      await spans?.close();
    },
  };
}
