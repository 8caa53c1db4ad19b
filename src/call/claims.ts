import { ToolEffects, ToolErrorReason, type ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { CallRef } from "../core/call-ref.ts";
import { workspaceRoot } from "../core/paths.ts";
import type { RemoteBodies, Reservation } from "../tool/remote.ts";
import { startsWithOthers } from "./children.ts";
import { endAsRead, endCall, isTooOld, maxIdempotentAttempts, tooOld } from "./ends.ts";
import { beforeDrain, type Engine, whileClaiming } from "./engine.ts";
import { launchCall } from "./launch.ts";
import type { CallRecord, CallWithAsks } from "./ports.ts";
import { rebindOrEnd } from "./rebind.ts";
import { runKeyOf } from "./running.ts";
import { failed, isTerminal } from "./state.ts";
import {
  endCancelled,
  findDefinition,
  freeSlot,
  hasFreeSlot,
  needsSlot,
  nextWaiting,
  takeSlot,
  takeWaiting,
  waitForSlot,
  waitForWorker,
} from "./waiting.ts";

/** Calls that are claimed at the same time after one settlement. */
const maxClaims = 16;

/** Facts about a claim: a call that waited for a slot, or one for which capacity of a worker is reserved. */
interface ClaimOptions {
  isNext?: boolean;
  reservation?: Reservation | undefined;
}

/** Outcome of a claim: "left" if the call stays as it is, "no slot" if this replica could run it and may not now. */
export type Claim = "done" | "left" | "no slot";

/**
 * Claims an orphaned call and launches it, if this replica serves its workspace and definition, has a free slot, and the body may
 * be entered once more. Ends a call that was not started within its life. `isNext` for a call that waited for a slot.
 */
export async function claimCall(
  engine: Engine,
  { record, asks }: CallWithAsks,
  { isNext = false, reservation: given }: ClaimOptions = {},
): Promise<Claim> {
  const { limits, log, replicaId, sessions, store } = engine;
  const { ref, part, spec, attempts, version } = record;
  if (attempts === 0 && isTooOld(engine, record, asks)) {
    given?.free();
    return (await endTooOld(engine, record)) ? "done" : "left";
  }
  if (record.mayHaveRun) {
    given?.free();
    return (await endFailedOver(engine, record)) ? "done" : "left";
  }
  if (engine.isDraining || !engine.agreesOnPolicy()) return "left";
  if (attempts >= maxIdempotentAttempts || startsWithOthers(part)) return "left";
  const opened = await sessions.load(ref.sessionId).catch((cause: unknown) => {
    log.warn("a call cannot be claimed: its workspace is not served here", { error: cause, callId: ref.callId });
    return undefined;
  });
  const tool = opened && findDefinition(engine, record, workspaceRoot(opened.workspace.name));
  const maxAttempts = tool?.idempotent ? maxIdempotentAttempts : 1;
  if (attempts >= maxAttempts) return "left";
  if (tool?.definition.definitionId !== spec.definitionId) {
    given?.free();
    // Another replica may have it.
    if (!tool || store.isShared) return "left";
    return attempts === 0 && (await rebindOrEnd(engine, { record, asks }, tool)) ? "done" : "left";
  }
  // It was running when that was asked: its start was taken back since, or its body may be entered once more.
  if (record.cancel !== undefined) {
    given?.free();
    return (await endCancelled(engine, record, record.cancel)) ? "done" : "left";
  }
  const hasSlot = needsSlot(engine, tool);
  if (hasSlot && !takeSlot(engine, ref, isNext)) {
    waitForSlot(engine, ref);
    return "no slot";
  }
  const reservation = given ?? tool.remote?.reserve(ref);
  // Its run leaves it to wait until a time that is stored with the call; it has left it once already.
  if (tool.remote && !reservation && record.queuedUntil !== undefined) {
    waitForWorker(engine, spec.definitionId, ref);
    return "no slot";
  }
  const sent = performance.now();
  let claimed: CallRecord | undefined;
  try {
    claimed = await whileClaiming(engine, ref, () => store.claimCall(ref, replicaId, limits.leaseMs, maxAttempts));
    // An ask that was opened or settled since has raised the version.
    const known = claimed?.version === version + 1 ? { asks } : {};
    if (claimed && opened) launchCall(engine, claimed, opened, sent, { ...known, hasSlot, reservation });
  } finally {
    if (hasSlot && !claimed) freeSlot(engine);
    if (!claimed) reservation?.free();
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
      const next = nextWaiting(engine.slots.waiting);
      if (!next) return;
      await claimOne(engine, next, { isNext: true });
    }
  } finally {
    engine.slots.isClaiming = false;
  }
}

/** Claims calls that wait for a worker, while workers of this replica have capacity; those of a definition one after the other. */
export function claimQueued(engine: Engine): void {
  const { claimingQueued, workerQueue } = engine;
  for (const definitionId of workerQueue.keys()) {
    const isBusy = claimingQueued.has(definitionId);
    // Capacity that appears meanwhile may come too late for the attempt that is under way.
    claimingQueued.set(definitionId, true);
    if (isBusy) continue;
    beforeDrain(engine, claimForWorkers(engine, definitionId)).catch((error: unknown) =>
      engine.log.warn("calls that wait for a worker are claimed by recovery", { error }),
    );
  }
}

async function claimForWorkers(engine: Engine, definitionId: string): Promise<void> {
  const { claimingQueued, workerQueue } = engine;
  try {
    while (claimingQueued.get(definitionId) && !engine.isDraining) {
      claimingQueued.set(definitionId, false);
      for (;;) {
        const waiting = workerQueue.get(definitionId);
        const next = waiting && (await reserveNext(engine, definitionId, waiting));
        if (!next) break;
        await claimOne(engine, next.ref, next);
      }
    }
  } finally {
    claimingQueued.delete(definitionId);
  }
}

/** Finds the first session tree whose next call a worker has capacity for, and removes that call from the queue. */
async function reserveNext(engine: Engine, definitionId: string, waiting: Map<string, CallRef[]>) {
  // Workers may serve some workspaces only.
  for (const [root, refs] of [...waiting].slice(0, maxClaims)) {
    const next = await reserveFirst(engine, definitionId, refs);
    if (!next) continue;
    takeWaiting(waiting, root, next.ref);
    if (waiting.size === 0 && engine.workerQueue.get(definitionId) === waiting) engine.workerQueue.delete(definitionId);
    return next;
  }
  return undefined;
}

/** Reserves capacity for the first call of a tree; one that a process did not enter does not hold up those behind it. */
async function reserveFirst(engine: Engine, definitionId: string, refs: readonly CallRef[]) {
  for (const ref of refs) {
    const remote = await remoteOf(engine, definitionId, ref);
    const reservation = remote?.reserve(ref);
    if (reservation) return { ref, reservation };
    if (!remote?.isPaused(ref)) return undefined;
  }
  return undefined;
}

/** Returns the workers that run the body of a call that waits, before it is read. */
async function remoteOf(engine: Engine, definitionId: string, ref: CallRef): Promise<RemoteBodies | undefined> {
  const opened = await engine.sessions.load(ref.sessionId).catch(() => undefined);
  const workspace = opened && workspaceRoot(opened.workspace.name);
  return workspace === undefined ? undefined : engine.remoteTools?.find(definitionId, workspace)?.remote;
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
async function claimOne(engine: Engine, ref: CallRef, options: ClaimOptions = {}): Promise<boolean> {
  const claim = await claimIfFree(engine, ref, options);
  // Frees what no run has taken over; `claimCall` has freed it unless it launched one.
  if (claim !== "done") options.reservation?.free();
  return claim !== "left";
}

async function claimIfFree(engine: Engine, ref: CallRef, options: ClaimOptions): Promise<Claim | "not free"> {
  // A run whose step has released the call ends in a moment, and so does the claim of an answer that has lost.
  const busy = engine.runs.get(runKeyOf(ref))?.done ?? engine.claiming.get(runKeyOf(ref));
  if (busy) {
    void busy.then(() => claimSettled(engine, [ref]));
    return "not free";
  }
  const found = await engine.store.getCallWithAsks(ref);
  if (found?.record.owner !== "" || isTerminal(found.record.part) || found.record.spec.delegated) return "not free";
  if (found.record.part.permissionIds.length > 0) return "not free";
  const claim = await claimCall(engine, found, options);
  return claim === "no slot" ? "left" : claim;
}

/** Ends a call whose start mark a failover may have lost, unless it has changed since it was read. */
export async function endFailedOver(engine: Engine, { ref, part, version }: CallRecord): Promise<boolean> {
  const ended = endOfFailedOver(part, engine.store.now());
  return (await endCall(engine, { ref, guard: { version }, part: ended })) !== undefined;
}

async function endTooOld(engine: Engine, record: CallRecord): Promise<boolean> {
  const { reason, message: error } = tooOld();
  return await endAsRead(engine, record, { reason, error });
}

/**
 * Returns the terminal part of a call that was open in a backup. Its effects are unknown even if it is pending there: after the
 * backup it may have been approved and run.
 */
export const endOfRestored = (part: ToolPart, now: number): ToolPart =>
  uncertainEnd(
    part,
    now,
    "The store was restored from a backup in which this call was open. It may have run after the backup: check its effects before you repeat it.",
  );

/** Returns the terminal part of a call whose start mark a failover may have lost. */
const endOfFailedOver = (part: ToolPart, now: number): ToolPart =>
  uncertainEnd(
    part,
    now,
    "A failover of the store lost acknowledged work of this session, or it cannot be ruled out. The call may have run before: it is not run again, check its effects before you repeat it.",
  );

function uncertainEnd(part: ToolPart, now: number, error: string): ToolPart {
  const ended = failed(part, { reason: ToolErrorReason.EXECUTOR_LOST, error }, now);
  if (ended.state.case !== "error") return ended;
  return { ...ended, state: { case: "error", value: { ...ended.state.value, effects: ToolEffects.UNKNOWN } } };
}
