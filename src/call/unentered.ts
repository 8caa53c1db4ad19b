import { setTimeout as delay, setImmediate } from "node:timers/promises";
import { ToolErrorReason, type ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { CallRef } from "../core/call-ref.ts";
import { isStoreUnavailable } from "../core/request-error.ts";
import { endCall } from "./end-call.ts";
import { CallEnd } from "./ends.ts";
import type { Engine } from "./engine.ts";
import type { Fence } from "./ports.ts";
import { runKeyOf } from "./running.ts";
import { isTaken } from "./runs.ts";
import { failed } from "./state.ts";

const unconfirmedText =
  "The store could not confirm in time that enough of its copies have the start of the call, so it was not run. Try it again as a new call.";
/** Pause before the end is written again. */
const retryMs = 250;

/** Returns the end of a call whose start mark was not confirmed: its body is not entered. */
export function startUnconfirmed(): CallEnd {
  return new CallEnd(ToolErrorReason.EXECUTOR_LOST, unconfirmedText);
}

/** True if the store acknowledges a step only once enough copies have it. */
export function isConfirming({ store }: Pick<Engine, "store">): boolean {
  return store.safety().required > 0;
}

/**
 * Ends a call whose start mark may be stored although the step that writes it failed. Its body is not entered here, and no other
 * replica may enter it. Nothing waits for it but the next request with the same ids. `pending` is the part before the start.
 */
export function endUnentered(engine: Engine, fence: Fence, pending: ToolPart): void {
  const { ref } = fence;
  const key = runKeyOf(ref);
  if (!isConfirming(engine) || engine.unsettled.has(key)) return;
  const work = endWithinLease(engine, fence, pending).finally(() => {
    if (engine.unentered.get(key) === work) engine.unentered.delete(key);
  });
  engine.unentered.set(key, work);
}

/** Waits until a call of these ids that was not entered here has ended, so that its end cannot meet a new call. */
export async function untilUnenteredEnded({ unentered }: Engine, ref: CallRef): Promise<void> {
  await unentered.get(runKeyOf(ref));
}

async function endWithinLease(engine: Engine, fence: Fence, pending: ToolPart): Promise<void> {
  const { limits, log, store } = engine;
  // The failed step counts as a claim until then.
  await setImmediate();
  const end = { reason: ToolErrorReason.EXECUTOR_LOST, error: unconfirmedText };
  for (const until = performance.now() + limits.leaseMs; performance.now() < until; ) {
    // Another request with the same ids has taken it.
    if (isTaken(engine, fence.ref)) return;
    try {
      await endCall(engine, { ref: fence.ref, guard: { fence }, part: failed(pending, end, store.now()) });
      return;
    } catch (error) {
      if (!isStoreUnavailable(error)) return log.error("a call that was not run could not be ended", { error });
      await delay(retryMs);
    }
  }
}
