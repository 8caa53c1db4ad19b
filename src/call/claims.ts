import type { AskRecord } from "../approval/ports.ts";
import type { CallRef } from "../core/call-ref.ts";
import { workspaceRoot } from "../core/workspace-root.ts";
import { startsWithOthers } from "./children.ts";
import { endCall } from "./end-call.ts";
import { isTooOld, tooOld } from "./ends.ts";
import type { Engine } from "./engine.ts";
import { launchCall } from "./launch.ts";
import type { CallRecord } from "./ports.ts";
import { beforeDrain, isTaken, whileClaiming } from "./runs.ts";
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

/**
 * Claims an orphaned call and launches it, if this replica serves its workspace and definition and its body may be entered once
 * more. Ends a call that was not started within its life. Returns false if the call stays as it is.
 */
export async function claimCall(engine: Engine, { record, asks }: CallWithAsks): Promise<boolean> {
  const { limits, log, registry, replicaId, sessions, store } = engine;
  const { ref, part, spec, attempts, version } = record;
  if (attempts === 0 && isTooOld(engine, record)) return await endTooOld(engine, record);
  if (engine.isDraining || !engine.agreesOnPolicy()) return false;
  if (attempts >= maxIdempotentAttempts || startsWithOthers(part)) return false;
  const opened = await sessions.load(ref.sessionId).catch((cause: unknown) => {
    log.warn("a call cannot be claimed: its workspace is not served here", { error: cause, callId: ref.callId });
    return undefined;
  });
  const tool = opened && registry.get(part.tool, workspaceRoot(opened.workspace.name));
  const maxAttempts = tool?.idempotent ? maxIdempotentAttempts : 1;
  if (tool?.definition.definitionId !== spec.definitionId || attempts >= maxAttempts) return false;
  const sent = performance.now();
  const claimed =
    opened && (await whileClaiming(engine, ref, () => store.claimCall(ref, replicaId, limits.leaseMs, maxAttempts)));
  if (!claimed) return false;
  // An ask that was opened or settled since has raised the version.
  launchCall(engine, claimed, opened, sent, claimed.version === version + 1 ? { asks } : {});
  return true;
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
async function claimOne(engine: Engine, ref: CallRef): Promise<boolean> {
  if (isTaken(engine, ref)) return true;
  const found = await engine.store.getCallWithAsks(ref);
  if (found?.record.owner !== "" || isTerminal(found.record.part) || found.record.spec.delegated) return true;
  if (found.record.part.permissionIds.length > 0) return true;
  return await claimCall(engine, found);
}

async function endTooOld(engine: Engine, { ref, part, version }: CallRecord): Promise<boolean> {
  const { reason, message: error } = tooOld();
  const ended = failed(part, { reason, error }, engine.store.now());
  return (await endCall(engine, { ref, guard: { version }, part: ended })) !== undefined;
}
