import type { ByteBudget } from "./http/byte-budget.ts";
import type { ConnectionCaps } from "./http/connection-caps.ts";

/** Returns the metrics of the edge in the text format of Prometheus. */
export function edgeMetrics({ budget, caps }: { budget: ByteBudget; caps: ConnectionCaps }): string {
  return [
    metric("toolgate_connections", "gauge", "Connections that are open.", caps.openCount),
    metric("toolgate_connections_refused_total", "counter", "Connections over a cap.", caps.refusedCount),
    metric("toolgate_buffered_bytes", "gauge", "Bytes of requests that have not arrived whole.", budget.usedBytes),
  ].join("");
}

function metric(name: string, type: "gauge" | "counter", help: string, value: number): string {
  return `# HELP ${name} ${help}\n# TYPE ${name} ${type}\n${name} ${value}\n`;
}
