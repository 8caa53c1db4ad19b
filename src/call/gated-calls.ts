import { setTimeout as delay } from "node:timers/promises";
import type { CallRef } from "../core/call-ref.ts";
import { ExecutorLost } from "../tool/errors.ts";
import type { Parent, StartGate } from "./children.ts";
import type { Engine } from "./engine.ts";
import { launchCall } from "./launch.ts";
import type { CallRecord } from "./ports.ts";
import { beforeDrain, checkNotDraining, whileClaiming } from "./runs.ts";
import { isTerminal } from "./state.ts";

/** Pause until a call is read again whose former owner's lease has not lapsed. */
const leasedMs = 250;

const lostGateText =
  "The replica of this call was lost after its calls had started together. They are not made again: look at what they did before you repeat the call.";

/**
 * Launches a call of an atomic batch that is resumed, at the new gate of the batch. A call that has ended stays as it is. Throws
 * `ExecutorLost` if the call was started: then the former gate was open, and what it stored to restore files is lost.
 */
export async function launchAtGate(
  engine: Engine,
  { opened, signal }: Pick<Parent, "opened" | "signal">,
  { ref }: Pick<CallRecord, "ref">,
  gate: StartGate,
): Promise<CallRef> {
  for (;;) {
    signal.throwIfAborted();
    checkNotDraining(engine);
    const record = await engine.store.getCall(ref.sessionId, ref.callId);
    if (!record) throw new Error(`call ${ref.callId} is gone while it was resumed`);
    if (record.attempts > 0) throw new ExecutorLost(lostGateText);
    if (isTerminal(record.part)) return ref;
    if (record.owner === "" && (await beforeDrain(engine, claimAtGate(engine, record, { opened }, gate)))) return ref;
    await delay(leasedMs);
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
