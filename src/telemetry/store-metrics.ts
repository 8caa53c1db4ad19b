import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import type { Store } from "../call/ports.ts";
import { RequestError } from "../core/request-error.ts";
import type { Family } from "./families.ts";
import { createHistogram, type Histogram } from "./histogram.ts";

/** Duration and failures of the steps of a store, by operation. */
export type StoreMetrics = ReturnType<typeof createStoreMetrics>;

/** Creates the metrics of a store; `measure` decorates the store. */
export function createStoreMetrics() {
  const operations = new Map<string, { durations: Histogram; errors: number }>();

  /** Measures each call of a function. A refusal by a guard is no error; a store that is not available is one. */
  function time<Args extends unknown[], Result>(name: string, work: (...args: Args) => Promise<Result>) {
    const operation = { durations: createHistogram(bounds), errors: 0 };
    operations.set(name, operation);
    return async (...args: Args): Promise<Result> => {
      const began = performance.now();
      try {
        return await work(...args);
      } catch (error) {
        if (!(error instanceof RequestError) || storeFailures.has(error.reason)) operation.errors += 1;
        throw error;
      } finally {
        operation.durations.add((performance.now() - began) / 1_000);
      }
    };
  }

  return {
    /** Decorates the steps that write; reads are not measured. */
    measure({ calls, permissions, outputs }: Store): Store {
      return {
        calls: {
          ...calls,
          // The id changes when a shared store loses its contents; a copy would go stale.
          get storeId() {
            return calls.storeId;
          },
          createSession: time("create_session", calls.createSession),
          openCall: time("open_call", calls.openCall),
          openAsks: time("open_asks", calls.openAsks),
          startCall: time("start_call", calls.startCall),
          recordEvents: time("record_events", calls.recordEvents),
          finishCall: time("finish_call", calls.finishCall),
          claimCall: time("claim_call", calls.claimCall),
          parkCall: time("park_call", calls.parkCall),
          resumeCall: time("resume_call", calls.resumeCall),
          renewLeases: time("renew_leases", calls.renewLeases),
        },
        permissions: { ...permissions, settle: time("settle_ask", permissions.settle) },
        outputs: { ...outputs, append: time("append_output", outputs.append) },
      };
    },
    families(sizes: Readonly<Record<string, number>>): Family[] {
      const all = [...operations].map(([name, operation]) => ({ label: `operation="${name}"`, ...operation }));
      return [
        {
          name: "toolgate_store_duration_seconds",
          type: "histogram",
          help: "Duration of the steps that write to the store, by operation.",
          samples: all.flatMap(({ label, durations }) => durations.samples(label)),
        },
        {
          name: "toolgate_store_errors_total",
          type: "counter",
          help: "Steps that failed because the store was not available or is defective, by operation.",
          samples: all.map(({ label, errors }) => `{${label}} ${errors}`),
        },
        {
          name: "toolgate_store_bytes",
          type: "gauge",
          help: "Bytes of the database, of its free pages and of its write-ahead log, by part; none with Redis.",
          samples: Object.entries(sizes).map(([part, bytes]) => `{part="${part}"} ${bytes}`),
        },
      ];
    },
  };
}

/** Reasons with which a store refuses because it failed itself. */
const storeFailures: ReadonlySet<ErrorReason> = new Set([ErrorReason.STORE_UNAVAILABLE, ErrorReason.STORE_DAMAGED]);
const bounds = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10];
