import type { StoreMembership } from "../../call/ports.ts";
import { type Authenticate, checkReadsMetrics } from "../api/access.ts";
import { senderOf } from "./enter-door.ts";
import { type Mount, type Refuse, type Request, type Response, sendWhole } from "./handler.ts";

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
        try {
          checkReadsMetrics(senderOf(authenticate, request));
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

/** Readiness of this replica, as orchestrators and load balancers ask for it. */
export interface Readiness {
  /** Returns why the replica cannot serve now; undefined if it can. */
  problem(): Promise<string | undefined>;
  /** Returns why this replica serves less safely than it could; undefined if nothing is known. */
  warning(): string | undefined;
  /** Aborted when the replica drains. */
  readonly draining: AbortSignal;
}

/** Creates the readiness: a replica is not ready while it drains, its store does not answer, or its policy differs. */
export function createReadiness(
  { ready, safety, agrees }: Pick<StoreMembership, "ready" | "safety"> & { agrees: () => boolean },
  draining: AbortSignal,
): Readiness {
  let probing: Promise<boolean> | undefined;
  /** Probes the store once for all that ask meanwhile: anyone may ask, and a probe is a round trip or a write. */
  const probe = (): Promise<boolean> => {
    probing ??= ready()
      .catch(() => false)
      .finally(() => {
        probing = undefined;
      });
    return probing;
  };
  return {
    draining,
    // Anyone may ask, so the facts are left to the log and GetServerInfo.
    warning: () =>
      safety().warnings.length === 0
        ? undefined
        : "the store has fewer copies than it should, or a failover may lose what was acknowledged: the log and GetServerInfo say why",
    async problem() {
      if (draining.aborted) return "draining";
      if (!(await probe()))
        return "the store cannot write: it does not answer, is full, is damaged or lacks copies; the log says which";
      if (agrees()) return undefined;
      return "policy mismatch: this replica's rules differ from those of other replicas on this store, which started or reloaded later: it takes no calls and no answers; give all the same rules";
    },
  };
}
