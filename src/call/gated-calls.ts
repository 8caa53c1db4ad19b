import type { CallRef } from "../core/call-ref.ts";
import { lostCall } from "../core/request-error.ts";
import { cancelCall } from "./cancel.ts";
import { childCallId, type Parent, type ParentRun, type StartGate } from "./children.ts";
import { CallGone, maxLifeMs } from "./ends.ts";
import { beforeDrain, checkServing, type Engine, whileClaiming } from "./engine.ts";
import { launchCall } from "./launch.ts";
import type { CallRecord } from "./ports.ts";
import { runKeyOf } from "./running.ts";
import { isTerminal } from "./state.ts";
import { releaseCall } from "./waiting.ts";

const notBegunText =
  "Nothing was run: the replica of its batch was lost after other calls of the batch had started, and this one had not.";

/** The calls of an atomic batch that is resumed, as its former replica left them. */
export interface FormerGate {
  readonly calls: ReadonlyMap<string, CallRecord>;
  /** True if one of them was started: then the gate was open, and none starts any more. */
  readonly wasOpen: boolean;
  /** True if one of them waits at a gate whose replica may be alive. */
  readonly isHeld: boolean;
}

/** Reads the calls that an atomic batch made before it was resumed. */
export async function readFormerGate({ store }: Engine, { record }: Parent, callCount: number): Promise<FormerGate> {
  const { sessionId, callId } = record.ref;
  const ids = Array.from({ length: callCount }, (_, index) => childCallId(callId, index + 1));
  const records = await Promise.all(ids.map((id) => store.getCall(sessionId, id)));
  const calls = records.filter((call) => call !== undefined);
  return {
    calls: new Map(calls.map((call) => [call.ref.callId, call])),
    wasOpen: calls.some(({ attempts }) => attempts > 0),
    isHeld: calls.some(({ owner, part }) => owner !== "" && !isTerminal(part)),
  };
}

/** Releases the calls that wait here at a gate that no batch opens any more. */
export async function releaseAtGate(engine: Engine, { calls }: FormerGate): Promise<void> {
  for (const record of calls.values()) {
    const run = engine.runs.get(runKeyOf(record.ref));
    if (!run || record.attempts > 0) continue;
    run.call.controller.abort(new CallGone());
    await run.done;
    await releaseCall(engine, record);
  }
}

/** Returns a call of a batch whose gate was open: one that had not started by then is ended, so that it never starts. */
export async function leaveAtOpenGate(engine: Engine, { calls }: FormerGate, callId: string): Promise<CallRef> {
  const record = calls.get(callId);
  if (!record) throw new Error(`call ${callId} of an atomic batch that had started was never accepted`);
  if (record.attempts === 0 && !isTerminal(record.part)) await cancelCall(engine, record.ref, notBegunText);
  return record.ref;
}

/** Launches a call of an atomic batch that is resumed, at the new gate of the batch. A call that has ended stays as it is. */
export async function launchAtGate(
  engine: Engine,
  { opened, signal }: Pick<Parent, "opened" | "signal">,
  { ref }: Pick<CallRecord, "ref">,
  gate: StartGate,
): Promise<CallRef> {
  for (;;) {
    signal.throwIfAborted();
    checkServing(engine);
    const record = await engine.store.getCall(ref.sessionId, ref.callId);
    if (!record) throw lostCall(ref, engine.store.storeIdOf(ref.root));
    if (isTerminal(record.part) || (await beforeDrain(engine, claimAtGate(engine, record, { opened }, gate))))
      return ref;
  }
}

async function claimAtGate(
  engine: Engine,
  { ref }: CallRecord,
  { opened }: Pick<Parent, "opened">,
  gate: StartGate,
): Promise<boolean> {
  const { limits, replicaId, store } = engine;
  const sent = performance.now();
  const claimed = await whileClaiming(engine, ref, () => store.claimCall(ref, replicaId, limits.leaseMs));
  if (claimed) launchCall(engine, claimed, opened, sent, { gate });
  return claimed !== undefined;
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
) {
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
    /** Counts a call that is accepted; a parent is parked only when all are. */
    async accepted(entry: Promise<CallRef>): Promise<CallRef> {
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
    /** Stops the parking: the calls have ended, or the parent ends. */
    end(): void {
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
