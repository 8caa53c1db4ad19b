import { checkReadsMetrics } from "../api/access.ts";
import type { Authenticate } from "../api/authenticate.ts";
import type { Refuse, Response } from "./handler.ts";
import { type Mount, sendWhole } from "./mounts.ts";
import type { Readiness } from "./readiness.ts";

/** Opens the door for orchestrators and Prometheus: `/healthz`, `/readyz` and `/metrics`. */
export function probeDoor({
  readiness,
  metrics,
  authenticate,
  refuse,
}: {
  readiness: Readiness;
  metrics: () => string | Promise<string>;
  authenticate: Authenticate;
  refuse: Refuse;
}): Mount[] {
  return [
    { path: "/healthz", handle: (_request, response) => sendWhole(response, 200, "text/plain", "ok\n") },
    { path: "/readyz", handle: (_request, response) => void sendReadiness(response, readiness) },
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
