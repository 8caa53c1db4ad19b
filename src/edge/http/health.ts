import { setTimeout as delay } from "node:timers/promises";
import { Health, HealthCheckResponse_ServingStatus as Status } from "../../../gen/grpc/health/v1/health_pb.ts";
import { unknownService } from "../rpc/errors.ts";
import type { Routes } from "../rpc/rpc-handler.ts";

/** Whether this replica can serve, as orchestrators and load balancers ask. */
export interface Readiness {
  /** Why it cannot serve now; undefined if it can. */
  reason(): Promise<string | undefined>;
}

/** Creates the readiness of a replica: not while it drains, nor while its store does not answer or others judge otherwise. */
export function createReadiness(
  { ready, agrees }: { ready: () => Promise<boolean>; agrees: () => boolean },
  shutdown: AbortSignal,
): Readiness {
  return {
    async reason() {
      if (shutdown.aborted) return "draining";
      if (!(await ready().catch(() => false))) return "the store does not answer";
      return agrees() ? undefined : "replicas that share the store judge by another policy; give all the same rules";
    },
  };
}

/** Serves grpc.health.v1 for the whole server ("") and each of these services; they share one state. */
export function routeHealth(router: Routes, readiness: Readiness, services: readonly string[]): void {
  const names = ["", ...services];
  const status = async () => ((await readiness.reason()) === undefined ? Status.SERVING : Status.NOT_SERVING);

  router.service(Health, {
    async check({ service }) {
      if (!names.includes(service)) throw unknownService(service);
      return { status: await status() };
    },
    async *watch({ service }, { signal }) {
      let told: Status | undefined;
      for (;;) {
        const now = names.includes(service) ? await status() : Status.SERVICE_UNKNOWN;
        if (now !== told) yield { status: now };
        told = now;
        // An abort has ended the last wait: what drains has now said so.
        signal.throwIfAborted();
        await delay(pollMs, undefined, { signal, ref: false }).catch(() => undefined);
      }
    },
    async list() {
      const now = { status: await status() };
      return { statuses: Object.fromEntries(names.map((name) => [name, now])) };
    },
  });
}

/** How often a watcher's server looks at the store; draining is told at once. */
const pollMs = 5_000;
