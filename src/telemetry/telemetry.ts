import type { CallObserver } from "../call/observer.ts";
import type { Logger } from "../core/logger.ts";
import { logEnd } from "./call-log.ts";
import { createMetrics, type ToolTally } from "./metrics.ts";

/** Metrics, spans and log lines of the calls on this replica. */
export interface Telemetry {
  observer: CallObserver;
  /** In the text format of Prometheus. */
  metrics(): string;
  /** Of all calls since `since` (ms since the epoch), when this replica started. */
  stats(): { since: number; tools: ToolTally[] };
  /** Sends what is not sent yet. */
  close(): Promise<void>;
}

/** Creates it; without `tracing` no span is made and nothing of OpenTelemetry is loaded. */
export async function createTelemetry({
  log,
  version,
  tracing,
}: {
  log: Logger;
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
              // Without spans of our own the caller's trace is handed on as it came.
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
    metrics: metrics.text,
    stats: () => ({ since, tools: metrics.stats() }),
    async close() {
      await spans?.close();
    },
  };
}
