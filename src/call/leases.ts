import { ToolErrorReason } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { CallRef } from "../core/call-ref.ts";
import { within } from "../core/within.ts";
import { adoptOwn } from "./adopt.ts";
import { noteOfChildSession } from "./child-sessions.ts";
import { startsWithOthers } from "./children.ts";
import { claimCall, endFailedOver } from "./claims.ts";
import { CallEnd, CallGone, endAsRead, isTooOld, notStoredText, tooOld } from "./ends.ts";
import { beforeDrain, type Engine, isLeaseValid, isTaken } from "./engine.ts";
import { recoverDelegated } from "./finish-delegated.ts";
import { launchCall } from "./launch.ts";
import { durabilityOf, parkSurviving, resumeOwnParent, resumeParent } from "./parents.ts";
import type { CallRecord, OrphanedCall } from "./ports.ts";
import { rebindUnclaimed, reviewWaiting } from "./rebind.ts";
import { runKeyOf } from "./running.ts";
import { isTerminal } from "./state.ts";
import { hasFreeSlot, recoverQueued, releaseCall, waitForSlot } from "./waiting.ts";

/** An orphaned call that no replica claims for this long ends. */
const maxUnclaimedMs = 60_000;
const unclaimedText = "No replica took the call up again after its executor stopped responding. It was not run.";
const unresumedText =
  "No replica took the call up again after its calls had ended. Each of these calls has its own result: look at them before you repeat anything.";
const changedText =
  "The tool has changed since the call began, so its body does not go on. Each of its calls has its own result: look at them before you repeat anything.";
const lostText = (attempts: number) =>
  `The executor stopped responding while the tool ran. It ran at most ${attempts > 1 ? `${attempts} times` : "once"}; it may have had none, some or all of its effects. It is not run again: look at what it did before you repeat it.`;

const workerLostText =
  "The worker that ran the tool did not come back in time. The tool may have had none, some or all of its effects. It is not run again: look at what it did before you repeat it.";

/** Renews this replica's leases. Aborts runs whose call it no longer owns or that are older than a day. */
export async function renewLeases(engine: Engine): Promise<void> {
  const { limits, replicaId, runs, store } = engine;
  const before = [...runs];
  const sent = performance.now();
  const held = await store.renewLeases(replicaId, limits.leaseMs);
  const keys = new Set(held.map(runKeyOf));
  for (const [key, { call }] of before) {
    if (!keys.has(key)) call.controller.abort(new CallGone());
    call.leaseConfirmed = sent;
    const isOld = isTooOld(engine, call.record, []);
    if (isOld && isTooOld(engine, call.record, await engine.asksOf(call.record.ref))) call.controller.abort(tooOld());
  }
  for (const ref of held) if (!runs.has(runKeyOf(ref))) await beforeDrain(engine, resumeCall(engine, ref, sent));
  // The lease counts from when the renewal was sent: after a slow answer the next regular round may be too late.
  if (performance.now() - sent > limits.leaseMs / 5) await renewLeases(engine);
}

/**
 * Resumes a call whose lease is ours but that has no run: its last step could not be recorded, or its lease lapsed and no
 * other replica claimed it.
 */
async function resumeCall(engine: Engine, ref: CallRef, leaseConfirmed: number): Promise<void> {
  const { replicaId, sessions, store } = engine;
  const record = await store.getCall(ref.sessionId, ref.callId);
  if (!record || isTerminal(record.part) || record.owner !== replicaId) return;
  if (isTaken(engine, ref) || engine.isDraining) return;
  if (record.mayHaveRun && !engine.unstored.has(runKeyOf(ref))) return void (await endFailedOver(engine, record));
  if (record.spec.delegated) return await releaseCall(engine, record);
  if (record.spec.durable && record.part.state.case === "running")
    return await resumeOwnParent(engine, record, leaseConfirmed);
  if (record.part.state.case === "running" && engine.unstored.has(runKeyOf(ref)))
    return await loseResult(engine, record);
  if (record.remote) return await adoptOwn(engine, record, leaseConfirmed);
  if (record.part.state.case === "running") return await loseCall(engine, record, lostText(record.attempts));
  if (startsWithOthers(record.part)) return await loseCall(engine, record, unclaimedText);
  const opened = await sessions.load(ref.sessionId);
  if (opened) launchCall(engine, record, opened, leaseConfirmed);
}

/** Aborts the runs whose lease is no longer valid. Reads nothing from the store, since it matters most when that is away. */
export async function stopLapsedRuns(engine: Engine): Promise<void> {
  for (const { call } of engine.runs.values()) if (!isLeaseValid(engine, call)) call.controller.abort(new CallGone());
}

/**
 * Settles expired asks and takes the steps of others, then claims every orphaned call; those whose body was entered, or that no replica claims, end as lost.
 * A call that cannot be recovered keeps no other from it.
 */
export async function recoverCalls(engine: Engine): Promise<void> {
  const { permissions, store } = engine;
  const failures: unknown[] = [];
  const attempt = (work: Promise<void>) => work.catch((error: unknown) => void failures.push(error));
  await attempt(permissions.lookAtDueAsks());
  if (!engine.isDraining) await attempt(reviewWaiting(engine));
  // Calls that ran first: they take those along that they made, which would otherwise be claimed only to be withdrawn.
  const orphans = (await store.orphans()).toSorted((one, other) => Number(other.started) - Number(one.started));
  engine.slots.waiting.clear();
  engine.workerQueue.clear();
  engine.queuedCounts = { now: countByDefinition(orphans), before: engine.queuedCounts.now };
  for (const orphan of orphans) {
    // The run of a call of a worker may still be about to send the start.
    if (isTaken(engine, orphan.ref)) continue;
    // Calls that could not run now are not read, since there can be many.
    const needsSlot = !orphan.started && !orphan.delegated && !orphan.queued;
    if (needsSlot && !hasFreeSlot(engine)) waitForSlot(engine, orphan.ref);
    else await attempt(recoverCall(engine, orphan));
  }
  if (failures.length > 0) throw failures[0];
}

function countByDefinition(orphans: readonly OrphanedCall[]): ReadonlyMap<string, number> {
  const queued = orphans.filter(({ started, queued }) => !started && queued);
  const byDefinition = Map.groupBy(queued, (orphan) => orphan.queued?.definitionId ?? "");
  return new Map([...byDefinition].map(([definitionId, calls]) => [definitionId, calls.length]));
}

async function recoverCall(engine: Engine, { ref, started, since, remote, queued }: OrphanedCall): Promise<void> {
  const { store } = engine;
  if (remote && started && store.now() < since + remote.resumeMs) {
    if (!engine.isDraining) engine.remoteTools?.onOrphan(ref, remote);
    return;
  }
  if (queued && !started) return await recoverQueued(engine, ref, queued);
  const found = await store.getCallWithAsks(ref);
  if (found?.record.owner !== "" || isTerminal(found.record.part)) return;
  const { record } = found;
  if (record.mayHaveRun) return void (await endFailedOver(engine, record));
  if (record.spec.delegated) return await recoverDelegated(engine, record);
  if (record.spec.durable && started) return await recoverParent(engine, record, since);
  // Its batch resumes it, or takes it along when it ends.
  if (!started && startsWithOthers(record.part)) return;
  if ((await beforeDrain(engine, claimCall(engine, found))) !== "left") return;
  if (started) await loseCall(engine, record, remote ? workerLostText : lostText(record.attempts));
  // Nothing is claimed during a drain, however long that takes.
  else if (!engine.isDraining && store.now() - since > maxUnclaimedMs && !(await rebindUnclaimed(engine, found)))
    await loseCall(engine, record, record.attempts > 0 ? lostText(record.attempts) : unclaimedText);
}

/** Resumes an orphaned durable parent, or ends it as lost when its work has ended with its replica or no replica resumes it. */
async function recoverParent(engine: Engine, record: CallRecord, since: number): Promise<void> {
  if ((await beforeDrain(engine, resumeParent(engine, record))) || engine.isDraining) return;
  const { survives, isChanged, onlyMakesCalls, waitMs = maxUnclaimedMs, lossNote } = await durabilityOf(engine, record);
  const mayResume = survives && (!isChanged || engine.store.isShared);
  if (mayResume && engine.store.now() - since <= waitMs) return;
  const goneText = isChanged ? changedText : unresumedText;
  const text = onlyMakesCalls ? goneText : lostText(record.attempts);
  await loseCall(engine, record, text, lossNote);
}

/** Ends a call with EXECUTOR_LOST, unless it has changed since it was read. */
async function loseCall(engine: Engine, record: CallRecord, ...facts: string[]): Promise<void> {
  const error = [...facts, await noteOfChildSession(engine, record.part)].filter(Boolean).join("\n\n");
  await endAsRead(engine, record, { reason: ToolErrorReason.EXECUTOR_LOST, error });
}

/** Ends a call with RESULT_NOT_STORED: its body came to its end here, and the store was away until the lease was over. */
async function loseResult(engine: Engine, record: CallRecord): Promise<void> {
  await endAsRead(engine, record, { reason: ToolErrorReason.RESULT_NOT_STORED, error: notStoredText });
  engine.unstored.delete(runKeyOf(record.ref));
}

/**
 * Accepts no more calls, hands waiting ones back to other replicas, gives running ones `ms` to end, then stops them. Returns true
 * if a call ran. A store that is away keeps none of it from happening: others take the calls once their leases are over.
 */
export async function drainCalls(engine: Engine, ms: number): Promise<boolean> {
  const { launching, log, replicaId, runs, store } = engine;
  engine.isDraining = true;
  await Promise.allSettled(launching);
  // First of all: what is pending afterwards can no longer start here, and what was just starting is running.
  await store
    .releaseCalls(replicaId)
    .catch((error: unknown) => log.warn("calls that wait stay with this replica until their leases end", { error }));
  let hasRun = false;
  for (const { call } of [...runs.values()]) {
    // A start mark that comes after the release is refused, and the run ends by itself.
    if (!call.isStarting) call.controller.abort(new CallGone());
    else {
      await (call.park?.() ?? parkSurviving(engine, call));
      hasRun ||= call.isParked !== true;
    }
  }
  await endedWithin(ms, engine);
  for (const { call } of runs.values()) {
    // It was just starting before.
    if (call.record.remote) await parkSurviving(engine, call);
    call.controller.abort(new CallEnd(ToolErrorReason.CANCELLED, "The service was stopped while the call ran."));
  }
  await Promise.allSettled([...runs.values()].map(({ done }) => done));
  engine.stopNews();
  return hasRun;
}

async function endedWithin(ms: number, { runs }: Engine): Promise<void> {
  await within(ms, Promise.allSettled([...runs.values()].map(({ done }) => done)), () => undefined);
}
