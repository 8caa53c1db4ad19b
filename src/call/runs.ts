import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import type { CallRef } from "../core/call-ref.ts";
import { RequestError } from "../core/request-error.ts";
import type { Engine } from "./engine.ts";
import { type Running, runKeyOf } from "./running.ts";

/** Share of a lease after which its owner no longer relies on it: the rest covers clocks and steps under way. */
const validShare = 0.8;

/** True while this replica can rely on its lease on a call, by its own clock from when the last confirmed renewal was sent. */
export function isLeaseValid({ store, limits }: Engine, { leaseConfirmed }: Pick<Running, "leaseConfirmed">): boolean {
  return !store.isShared || performance.now() < leaseConfirmed + limits.leaseMs * validShare;
}

/** True if this replica runs the call or is about to. */
export function isTaken({ runs, claiming }: Engine, ref: CallRef): boolean {
  return runs.has(runKeyOf(ref)) || claiming.has(runKeyOf(ref));
}

/**
 * Marks a call as being claimed while a step makes this replica its owner, so that recovery does not treat it as orphaned
 * before it is launched. The caller has to launch it in the same turn of the event loop in which this resolves.
 */
export async function whileClaiming<T>({ claiming }: Engine, ref: CallRef, step: () => Promise<T>): Promise<T> {
  const key = runKeyOf(ref);
  const { promise: claimed, resolve } = Promise.withResolvers<void>();
  claiming.set(key, claimed);
  return await step().finally(() =>
    setImmediate(() => {
      if (claiming.get(key) === claimed) claiming.delete(key);
      resolve();
    }),
  );
}

/** Registers work that may launch a call, so that a drain waits for it. */
export async function beforeDrain<T>({ launching }: Engine, work: Promise<T>): Promise<T> {
  launching.add(work);
  try {
    return await work;
  } finally {
    launching.delete(work);
  }
}

/** Throws DRAINING if this replica accepts no more calls. */
export function checkServing(engine: Engine): void {
  const refusal = servingRefusal(engine);
  if (refusal) throw refusal;
}

/** Builds the refusal of a new call during a drain, or where other replicas have later rules; undefined while calls are accepted. */
export function servingRefusal({ isDraining, agreesOnPolicy }: Engine): RequestError | undefined {
  if (!isDraining && agreesOnPolicy()) return undefined;
  const reason = isDraining
    ? "this replica is going away and accepts no new calls"
    : "the rules of this replica were replaced at others that share its store, so it takes no calls and no answers until it has the same rules";
  return new RequestError(
    ErrorReason.DRAINING,
    `${reason}; try again with the same ids, at another one or in a moment`,
  );
}
