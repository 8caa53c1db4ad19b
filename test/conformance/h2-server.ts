/** A server under test of h2spec: `edge`, or bare `node:http2`. It prints its port. */
import { createServer } from "node:http2";
import { readLimits } from "../../src/config/schema.ts";
import { type EdgeOptions, startEdge } from "../../src/edge/edge.ts";

const silent = () => undefined;

if (process.argv[2] === "edge") {
  const options: EdgeOptions = {
    config: {
      listen: { host: "127.0.0.1", port: 0 },
      tls: undefined,
      hosts: [],
      origins: [],
      trustedProxies: [],
      tokens: [],
      insecureNoAuth: false,
      limits: readLimits(),
    },
    // h2spec asks for /healthz only.
    services: () =>
      ({
        tools: {},
        permissions: {},
        sessions: {},
        credentials: {},
        people: {},
        agents: {},
        sources: {},
        operator: {},
        channels: {},
        workers: {},
      }) as never,
    credentials: {} as never,
    signIns: {} as never,
    storeId: () => "sto_test",
    encoded: { bytesOf: () => undefined },
    ready: async () => true,
    safety: () => ({ copies: 0, expected: 0, required: 0, warnings: [] }),
    agrees: () => true,
    metrics: () => "",
    consoleDirectory: import.meta.dirname,
    log: { debug: silent, info: silent, warn: silent, error: silent },
  };
  announce((await startEdge(options)).url);
} else {
  // With the edge's limit of streams, without which h2spec skips a test.
  const settings = { maxConcurrentStreams: 1_100 };
  const server = createServer({ settings }, (_request, response) => response.end("ok\n"));
  server.listen(0, "127.0.0.1", () => {
    const address = server.address();
    if (typeof address === "object" && address !== null) announce(`http://127.0.0.1:${address.port}`);
  });
}

function announce(url: string): void {
  process.stdout.write(`${new URL(url).port}\n`);
}
