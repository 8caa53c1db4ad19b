import type { CallRef } from "../core/call-ref.ts";
import { lostCall } from "../core/request-error.ts";
import { cancelCall } from "./cancel.ts";
import type { Parent, StartGate } from "./children.ts";
import { childCallId } from "./children.ts";
import { CallGone } from "./ends.ts";
import type { Engine } from "./engine.ts";
import { launchCall } from "./launch.ts";
import type { CallRecord } from "./ports.ts";
import { releaseCall } from "./release.ts";
import { runKeyOf } from "./running.ts";
import { beforeDrain, checkServing, whileClaiming } from "./runs.ts";
import { isTerminal } from "./state.ts";

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
