import { setTimeout as delay } from "node:timers/promises";
import { create } from "@bufbuild/protobuf";
import {
  type Health,
  type HealthCheckResponse,
  HealthCheckResponseSchema,
  HealthCheckResponse_ServingStatus as Status,
} from "../../../gen/grpc/health/v1/health_pb.ts";
import { notServed } from "../api/request-failure.ts";
import type { ServiceFunctions } from "../api/rpc.ts";
import type { Readiness } from "../http/readiness.ts";

/** Returns the functions of grpc.health.v1 for the whole server ("") and each of these services, which share one state. */
export function healthService(readiness: Readiness, services: readonly string[]): ServiceFunctions<typeof Health> {
  const names = ["", ...services];
  const state = async () => ((await readiness.problem()) === undefined ? serving : notServing);

  return {
    async check({ service }) {
      if (names.includes(service)) return await state();
      throw notServed("not_found", `service ${service} is not served here; List names those that are`);
    },
    async *watch({ service }, { signal }) {
      let sent: HealthCheckResponse | undefined;
      const news = AbortSignal.any([signal, readiness.draining]);
      for (;;) {
        const wasDraining = readiness.draining.aborted;
        const current = names.includes(service) ? await state() : serviceUnknown;
        if (current !== sent) yield current;
        sent = current;
        // An abort ends the wait below, so that a drain is reported at once, before the stream ends.
        signal.throwIfAborted();
        const waits = { signal: wasDraining ? signal : news, ref: false };
        await delay(pollMs, undefined, waits).catch(() => undefined);
      }
    },
    async list() {
      const current = await state();
      return { statuses: Object.fromEntries(names.map((name) => [name, current])) };
    },
  };
}

// One message for each state, so that each is encoded once.
const serving = create(HealthCheckResponseSchema, { status: Status.SERVING });
const notServing = create(HealthCheckResponseSchema, { status: Status.NOT_SERVING });
const serviceUnknown = create(HealthCheckResponseSchema, { status: Status.SERVICE_UNKNOWN });

/** Interval at which a watch checks the store. A drain is reported at once. */
const pollMs = 5_000;
