import { setTimeout as delay } from "node:timers/promises";
import type { ConnectRouter } from "@connectrpc/connect";
import { Health, HealthCheckResponse_ServingStatus as Status } from "../../../gen/grpc/health/v1/health_pb.ts";
import { RequestFailure } from "../api/request-failure.ts";
import type { Readiness } from "../http/readiness.ts";

/** Serves grpc.health.v1 for the whole server ("") and each of these services, which share one state. */
export function routeHealth(router: ConnectRouter, readiness: Readiness, services: readonly string[]): void {
  const names = ["", ...services];
  const status = async () => ((await readiness.problem()) === undefined ? Status.SERVING : Status.NOT_SERVING);

  router.service(Health, {
    async check({ service }) {
      if (names.includes(service)) return { status: await status() };
      throw new RequestFailure("not_found", `service ${service} is not served here; List names those that are`);
    },
    async *watch({ service }, { signal }) {
      let sent: Status | undefined;
      for (;;) {
        const current = names.includes(service) ? await status() : Status.SERVICE_UNKNOWN;
        if (current !== sent) yield { status: current };
        sent = current;
        // An abort ends the wait below, so that a drain is reported before the stream ends.
        signal.throwIfAborted();
        await delay(pollMs, undefined, { signal, ref: false }).catch(() => undefined);
      }
    },
    async list() {
      const current = { status: await status() };
      return { statuses: Object.fromEntries(names.map((name) => [name, current])) };
    },
  });
}

/** Interval at which a watch checks the store. A drain is reported at once. */
const pollMs = 5_000;
