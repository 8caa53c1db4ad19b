import type { CallRef } from "../core/call-ref.ts";
import { workspaceRoot } from "../core/paths.ts";
import type { RemoteCall, RemoteMark } from "../tool/remote.ts";
import { CallGone } from "./ends.ts";
import { beforeDrain, checkServing, type Engine, whileClaiming } from "./engine.ts";
import { launchAgain } from "./parents.ts";
import type { CallRecord } from "./ports.ts";
import { fenceOf, type Running, runKeyOf } from "./running.ts";
import { isTerminal } from "./state.ts";
import { findDefinition, offerAgain, waitAgain } from "./waiting.ts";

/**
 * Outcome of an adoption: "ended" if the worker's run of the body is not the call's any more, "foreign" if the mark is not that of this
 * process, or of a connection that it has replaced.
 */
export type Adoption = "adopted" | "ended" | "foreign";

/**
 * Goes on with a call whose body a worker has entered, and which has connected to this replica. The body is not entered again: the
 * run waits for its reports.
 */
export async function adoptCall(engine: Engine, call: RemoteCall, mark: RemoteMark): Promise<Adoption> {
  checkServing(engine);
  return await beforeDrain(engine, adoptOpen(engine, call, mark));
}

async function adoptOpen(engine: Engine, { sessionId, callId }: RemoteCall, mark: RemoteMark): Promise<Adoption> {
  const { limits, replicaId, store } = engine;
  const record = await store.getCall(sessionId, callId);
  const own = compare(record, mark);
  if (!record || own !== "adopted") return own;
  const { ref } = record;
  const key = runKeyOf(ref);
  const claiming = engine.claiming.get(key);
  if (claiming) {
    await claiming;
    return await adoptOpen(engine, { sessionId, callId }, mark);
  }
  const run = engine.runs.get(key);
  if (run?.call.record.remote && run.call.fence.epoch === record.epoch) return await moveRun(engine, run.call, mark);
  const served = await findServed(engine, record);
  // Another replica may serve it.
  if (!served) return "foreign";
  const sent = performance.now();
  const adopted = await whileClaiming(engine, ref, () => store.adoptCall(ref, mark, replicaId, limits.leaseMs));
  if (!adopted) return await afterRefusal(engine, ref, mark);
  launchAgain(engine, adopted, served, sent);
  return "adopted";
}

/** Compares a mark with the stored one. */
function compare(record: CallRecord | undefined, mark: RemoteMark): Adoption {
  if (!record?.remote || isTerminal(record.part)) return "ended";
  const { assignment, instance, principal } = record.remote;
  // The call was started again for another worker.
  if (assignment !== mark.assignment) return "ended";
  return instance === mark.instance && principal === mark.principal ? "adopted" : "foreign";
}

/** Stores the new connection of a worker whose call runs here: its line was cut, and the run goes on. */
async function moveRun(engine: Engine, call: Running, mark: RemoteMark): Promise<Adoption> {
  const { limits, replicaId, store } = engine;
  const { ref, remote } = call.record;
  if (remote && mark.connection <= remote.connection)
    return mark.connection === remote.connection ? "adopted" : "foreign";
  // Steps that are sent behind this one need the fence that it makes.
  const before = call.fence;
  call.fence = { ...before, epoch: before.epoch + 1 };
  const adopted = await store.adoptCall(ref, mark, replicaId, limits.leaseMs).catch((error: unknown) => {
    call.fence = before;
    throw error;
  });
  if (!adopted) {
    call.fence = before;
    return await afterRefusal(engine, ref, mark);
  }
  call.fence = fenceOf(adopted);
  call.record = adopted;
  return "adopted";
}

async function afterRefusal(engine: Engine, ref: CallRef, mark: RemoteMark): Promise<Adoption> {
  const own = compare(await engine.store.getCall(ref.sessionId, ref.callId), mark);
  return own === "adopted" ? "foreign" : own;
}

async function findServed(engine: Engine, record: CallRecord) {
  const opened = await engine.sessions.load(record.ref.sessionId).catch(() => undefined);
  const tool = opened && findDefinition(engine, record, workspaceRoot(opened.workspace.name));
  return opened && tool?.remote && tool.definition.definitionId === record.spec.definitionId
    ? { opened, tool }
    : undefined;
}

/** Launches the run of a started call of a worker whose lease is ours but that has no run; otherwise leaves it to other replicas. */
export async function adoptOwn(engine: Engine, record: CallRecord, leaseConfirmed: number): Promise<void> {
  const served = await findServed(engine, record);
  if (served) launchAgain(engine, record, served, leaseConfirmed);
  else await engine.store.parkCall(fenceOf(record), 0);
}

/** Gives a call back whose body its worker has not entered and will not enter. Returns false if it is not this run's any more. */
export async function restartUnentered(
  engine: Engine,
  { sessionId, callId }: RemoteCall,
  mark: RemoteMark,
): Promise<boolean> {
  const record = await engine.store.getCall(sessionId, callId);
  if (!record) return false;
  const run = engine.runs.get(runKeyOf(record.ref));
  const served = await findServed(engine, record);
  const queued = waitAgain(engine, run?.call.record ?? record, served?.tool);
  if (!(await engine.store.restartCall(record.ref, mark, queued))) return false;
  run?.call.controller.abort(new CallGone());
  await offerAgain(engine, record.ref, queued.definitionId);
  return true;
}
