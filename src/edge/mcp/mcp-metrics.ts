/** Counters of the MCP door. */
export interface McpMetrics {
  /** Counts a request; a method that the door does not serve is counted as `(other)`. */
  count(era: "legacy" | "modern", method: string): void;
  /** Counts a call that is held, and returns the function that ends it. */
  hold(): () => void;
  /** Returns the counters in the text format of Prometheus. */
  text(): string;
}

/** Methods that become a label. Clients choose them, so that the number of labels has to be bounded. */
const methods: ReadonlySet<string> = new Set([
  ...["initialize", "ping", "server/discover", "subscriptions/listen", "notifications/cancelled"],
  ...["tools/list", "tools/call", "resources/list", "resources/templates/list", "resources/read"],
]);

/** Creates the counters. */
export function createMcpMetrics(): McpMetrics {
  const counts = new Map<string, number>();
  let heldCount = 0;
  return {
    count(era, method) {
      const labels = `{era="${era}",method="${methods.has(method) ? method : "(other)"}"}`;
      counts.set(labels, (counts.get(labels) ?? 0) + 1);
    },
    hold() {
      heldCount += 1;
      return () => {
        heldCount -= 1;
      };
    },
    text: () =>
      [
        "# HELP toolgate_mcp_requests_total Requests of MCP clients over HTTP, by era of the protocol and method.",
        "# TYPE toolgate_mcp_requests_total counter",
        ...[...counts].map(([labels, count]) => `toolgate_mcp_requests_total${labels} ${count}`),
        "# HELP toolgate_mcp_held_calls Calls of MCP clients over HTTP whose responses are open.",
        "# TYPE toolgate_mcp_held_calls gauge",
        `toolgate_mcp_held_calls ${heldCount}\n`,
      ].join("\n"),
  };
}
