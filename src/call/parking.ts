import type { CallRef } from "../core/call-ref.ts";
import type { ParentRun, StartGate } from "./children.ts";
import { CallGone, maxLifeMs } from "./ends.ts";
import type { Engine } from "./engine.ts";

/** Lets a durable parent wait for its calls without an owner. */
export interface Parking {
  /** Counts a call that is accepted; a parent is parked only when all are. */
  accepted(entry: Promise<CallRef>): Promise<CallRef>;
  /** Stops the parking: the calls have ended, or the parent ends. */
  end(): void;
}

/** Time for which a parent waits for its calls before it is parked: most end sooner. */
const parkAfterMs = 1_000;

/**
 * Parks a durable parent when its calls have been accepted and have not ended soon, or when the replica drains. `leave` is then
 * aborted with `CallGone`: the replica that records the end of the last call resumes the parent. The calls of an atomic batch meet
 * at a gate in memory, so such a parent keeps its owner until a drain, and another replica resumes it at once; after its gate has
 * opened it is not parked, since its calls run here.
 */
export function createParking(
  engine: Engine,
  run: ParentRun,
  { callCount, gate, leave }: { callCount: number; gate: StartGate | undefined; leave: AbortController },
): Parking {
  const { promise: allAccepted, resolve } = Promise.withResolvers<void>();
  let missing = callCount;
  let isOff = false;
  let timer: NodeJS.Timeout | undefined;

  async function park(): Promise<void> {
    await allAccepted;
    if (isOff || gate?.isOpen) return;
    run.isParked = true;
    if (await engine.store.parkCall(run.fence, gate ? 0 : maxLifeMs)) leave.abort(new CallGone());
    else run.isParked = false;
  }

  const parkOrStay = () =>
    park().catch((error: unknown) => {
      const { callId } = run.record.ref;
      engine.log.warn("a call keeps its owner while it waits for its calls", { error, callId });
    });
  run.park = parkOrStay;
  allAccepted.then(() => {
    if (!isOff && !gate) timer = setTimeout(parkOrStay, parkAfterMs);
  });
  return {
    async accepted(entry) {
      try {
        return await entry;
      } catch (error) {
        // The replica that resumes the parent makes the call.
        if (engine.isDraining) leave.abort(new CallGone());
        leave.signal.throwIfAborted();
        // A call that is refused has no record: its result is only here.
        isOff = true;
        throw error;
      } finally {
        missing -= 1;
        if (missing === 0) resolve();
      }
    },
    end() {
      isOff = true;
      clearTimeout(timer);
      resolve();
    },
  };
}

/** Ends the lease of a durable parent that cannot go on yet, and its run: recovery resumes it soon. */
export async function leaveToRecovery(engine: Engine, run: ParentRun): Promise<never> {
  run.isParked = true;
  // If this fails, the lease stays ours without a run, which `renewLeases` observes.
  await engine.store.parkCall(run.fence, 0).catch(() => false);
  throw new CallGone();
}
