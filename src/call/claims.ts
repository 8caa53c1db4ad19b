import type { AskRecord } from "../approval/ports.ts";
import type { CallRef } from "../core/call-ref.ts";
import { workspaceRoot } from "../core/workspace-root.ts";
import { startsWithOthers } from "./children.ts";
import { endCall } from "./end-call.ts";
import { isTooOld, tooOld } from "./ends.ts";
import type { Engine } from "./engine.ts";
import { launchCall } from "./launch.ts";
import type { CallRecord } from "./ports.ts";
import { runKeyOf } from "./running.ts";
import { beforeDrain, whileClaiming } from "./runs.ts";
import { freeSlot, hasFreeSlot, needsSlot, nextWaiting, takeSlot, waitForSlot } from "./slots.ts";
import { failed, isTerminal } from "./state.ts";

/** Times that the body of an idempotent tool may be entered. */
const maxIdempotentAttempts = 3;
/** Calls that are claimed at the same time after one settlement. */
const maxClaims = 16;

/** A call with every ask that it has opened. */
export interface CallWithAsks {
  record: CallRecord;
  asks: readonly AskRecord[];
}

/** Outcome of a claim: "left" if the call stays as it is, "no slot" if this replica could run it and may not now. */
export type Claim = "done" | "left" | "no slot";

/**
 * Claims an orphaned call and launches it, if this replica serves its workspace and definition, has a free slot, and the body may
 * be entered once more. Ends a call that was not started within its life. `isNext` for a call that waited for a slot.
 */
export async function claimCall(engine: Engine, { record, asks }: CallWithAsks, isNext = false): Promise<Claim> {
  const { limits, log, registry, replicaId, sessions, store } = engine;
  const { ref, part, spec, attempts, version } = record;
  if (attempts === 0 && isTooOld(engine, record)) return (await endTooOld(engine, record)) ? "done" : "left";
  if (engine.isDraining || !engine.agreesOnPolicy()) return "left";
  if (attempts >= maxIdempotentAttempts || startsWithOthers(part)) return "left";
  const opened = await sessions.load(ref.sessionId).catch((cause: unknown) => {
    log.warn("a call cannot be claimed: its workspace is not served here", { error: cause, callId: ref.callId });
    return undefined;
  });
  const tool = opened && registry.get(part.tool, workspaceRoot(opened.workspace.name));
  const maxAttempts = tool?.idempotent ? maxIdempotentAttempts : 1;
  if (tool?.definition.definitionId !== spec.definitionId || attempts >= maxAttempts) return "left";
  const hasSlot = needsSlot(engine, tool);
  if (hasSlot && !takeSlot(engine, ref, isNext)) {
    waitForSlot(engine, ref);
    return "no slot";
  }
  const sent = performance.now();
  let claimed: CallRecord | undefined;
  try {
    claimed = await whileClaiming(engine, ref, () => store.claimCall(ref, replicaId, limits.leaseMs, maxAttempts));
    // An ask that was opened or settled since has raised the version.
    const known = claimed?.version === version + 1 ? { asks } : {};
    if (claimed && opened) launchCall(engine, claimed, opened, sent, { ...known, hasSlot });
  } finally {
    if (hasSlot && !claimed) freeSlot(engine);
  }
  return claimed ? "done" : "left";
}

/** Claims calls that wait for a slot, one after the other, while slots are free. */
export function claimWaiting(engine: Engine): void {
  if (engine.slots.isClaiming) return;
  const work = beforeDrain(engine, claimInTurn(engine));
  work.catch((error: unknown) => engine.log.warn("calls that wait for a slot are claimed by recovery", { error }));
}

async function claimInTurn(engine: Engine): Promise<void> {
  engine.slots.isClaiming = true;
  try {
    while (!engine.isDraining && hasFreeSlot(engine)) {
      const next = nextWaiting(engine);
      if (!next) return;
      await claimOne(engine, next, true);
    }
  } finally {
    engine.slots.isClaiming = false;
  }
}

/** Claims calls that a settlement of this replica left without an owner, and notifies the other replicas of the rest. */
export function claimSettled(engine: Engine, refs: readonly CallRef[]): void {
  if (refs.length === 0) return;
  const work = beforeDrain(engine, claimAll(engine, refs));
  work.catch((error: unknown) => engine.log.warn("calls that were answered are claimed by recovery", { error }));
}

/** Claims a call that another replica left unclaimed. */
export function claimAnnounced(engine: Engine, ref: CallRef): void {
  const work = beforeDrain(engine, claimOne(engine, ref));
  work.catch((error: unknown) =>
    engine.log.warn("a call that was answered is claimed by recovery", { error, callId: ref.callId }),
  );
}

async function claimAll(engine: Engine, refs: readonly CallRef[]): Promise<void> {
  const left: CallRef[] = [];
  for (let from = 0; from < refs.length; from += maxClaims) {
    const some = refs.slice(from, from + maxClaims);
    const isDone = await Promise.all(some.map((ref) => claimOne(engine, ref)));
    left.push(...some.filter((_, index) => !isDone[index]));
  }
  if (left.length > 0) await engine.store.announceUnclaimed(left);
}

/** Claims a call, if it needs an owner. Returns false if another replica has to claim it. */
async function claimOne(engine: Engine, ref: CallRef, isNext = false): Promise<boolean> {
  // A run whose step has released the call ends in a moment, and so does the claim of an answer that has lost.
  const busy = engine.runs.get(runKeyOf(ref))?.done ?? engine.claiming.get(runKeyOf(ref));
  if (busy) {
    void busy.then(() => claimSettled(engine, [ref]));
    return true;
  }
  const found = await engine.store.getCallWithAsks(ref);
  if (found?.record.owner !== "" || isTerminal(found.record.part) || found.record.spec.delegated) return true;
  if (found.record.part.permissionIds.length > 0) return true;
  return (await claimCall(engine, found, isNext)) === "done";
}

async function endTooOld(engine: Engine, { ref, part, version }: CallRecord): Promise<boolean> {
  const { reason, message: error } = tooOld();
  const ended = failed(part, { reason, error }, engine.store.now());
  return (await endCall(engine, { ref, guard: { version }, part: ended })) !== undefined;
}
