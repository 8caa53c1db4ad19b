import { checkReadsMetrics } from "../api/access.ts";
import type { Authenticate } from "../api/authenticate.ts";
import type { Refuse, Request, Response } from "./handler.ts";
import { type Mount, sendWhole } from "./mounts.ts";
import type { Readiness } from "./readiness.ts";

/** Checks if a request asks for health: a probe calls a replica by an address, and learns no more than its state. */
export function isProbe({ method, url }: Request): boolean {
  return method === "GET" && (url === "/healthz" || url === "/readyz");
}

/** Opens the door for orchestrators: `/healthz` and `/readyz`. */
export function healthDoor({ readiness }: { readiness: Readiness }): Mount[] {
  return [
    { path: "/healthz", handle: (_request, response) => sendWhole(response, 200, "text/plain", "ok\n") },
    { path: "/readyz", handle: (_request, response) => void sendReadiness(response, readiness) },
  ];
}

/** Opens the door for Prometheus: `/metrics`. */
export function metricsDoor({
  metrics,
  authenticate,
  refuse,
}: {
  metrics: () => string | Promise<string>;
  authenticate: Authenticate;
  refuse: Refuse;
}): Mount[] {
  return [
    {
      path: "/metrics",
      handle(request, response) {
        const { headers } = request;
        try {
          checkReadsMetrics(
            authenticate({ get: (name) => (name === "authorization" ? headers.authorization : null) ?? null }),
          );
        } catch (error) {
          return refuse(error, request, response);
        }
        void sendMetrics(response, metrics);
      },
    },
  ];
}

async function sendMetrics(response: Response, metrics: () => string | Promise<string>): Promise<void> {
  const type = "text/plain; version=0.0.4; charset=utf-8";
  const text = await Promise.resolve(metrics()).catch(() => undefined);
  if (text === undefined) sendWhole(response, 503, "text/plain", "the metrics cannot be read\n");
  else sendWhole(response, 200, type, text);
}

async function sendReadiness(response: Response, readiness: Readiness): Promise<void> {
  const problem = await readiness.problem();
  const warning = readiness.warning();
  const lines = [problem ?? "ok", ...(warning === undefined ? [] : [`warning: ${warning}`])];
  sendWhole(response, problem === undefined ? 200 : 503, "text/plain", `${lines.join("\n")}\n`);
}
