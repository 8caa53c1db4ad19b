import { create } from "@bufbuild/protobuf";
import { ToolProgressSchema } from "../../gen/opencode/tool/v1/event_pb.ts";
import { ToolErrorReason, type ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { AskRecord } from "../approval/ports.ts";
import { newId } from "../core/ids.ts";
import { workspaceRoot } from "../core/paths.ts";
import { ExecutorLost, NotEntered, WorkerElsewhere } from "../tool/errors.ts";
import type { RemoteMark, Reservation } from "../tool/remote.ts";
import { approveCall } from "./approve.ts";
import { executeBody } from "./body.ts";
import { createCallHooks } from "./call-hooks.ts";
import { noteCall } from "./call-record.ts";
import type { StartGate } from "./children.ts";
import { CallEnd, maxIdempotentAttempts } from "./ends.ts";
import type { Engine } from "./engine.ts";
import type { WaitTime } from "./observer.ts";
import type { CallRecord } from "./ports.ts";
import { resolveTool, runBeforeHooks } from "./prepare.ts";
import { fenceOf, type Running, runKeyOf, type Startable } from "./running.ts";
import type { OpenSession } from "./sessions.ts";
import { failCall, settleCall } from "./settle.ts";
import { isTerminal } from "./state.ts";
import { adviceText, stopOf, stopText } from "./stops.ts";
import { freeSlot, offerAgain, waitAgain, waitForSlot, waitForWorker } from "./waiting.ts";

/** Facts about a launched call that need not be found out again. */
export interface Launch {
  /** Set for a call whose start mark is written. */
  ready?: Startable | undefined;
  gate?: StartGate | undefined;
  /** Its asks, if they were read with the record. */
  asks?: readonly AskRecord[] | undefined;
  /** A slot was taken for it, which the end of its run frees. */
  hasSlot?: boolean;
  /** Capacity of a worker that was reserved for it, which the end of its run frees. */
  reservation?: Reservation | undefined;
}

/** Starts the run of a call that this replica holds the lease of. The run has its own signal: the request that made the call may end. */
export function launchCall(
  engine: Engine,
  record: CallRecord,
  opened: OpenSession,
  leaseConfirmed: number,
  { ready, gate, asks, hasSlot = false, reservation }: Launch = {},
): void {
  const { runs } = engine;
  const key = runKeyOf(record.ref);
  const call = newRunning(engine, record, opened, leaseConfirmed, { gate, asks });
  call.hasSlot = hasSlot;
  call.reservation = reservation;
  const done = runCall(engine, call, ready).finally(() => {
    if (call.isStarting && !isTerminal(call.record.part)) engine.unsettled.add(key);
    if (runs.get(key)?.call === call) runs.delete(key);
    call.isOver = true;
    if (call.hasSlot) freeSlot(engine);
    call.reservation?.free();
    if (call.isTurnedAway) waitForSlot(engine, record.ref);
    if (call.queuedFor !== undefined) waitForWorker(engine, call.queuedFor, record.ref);
  });
  runs.set(key, { call, done });
}

/** Creates the state of a run, for a call at a fence. */
export function newRunning(
  engine: Engine,
  record: CallRecord,
  opened: OpenSession,
  leaseConfirmed: number,
  { gate, assignment, asks }: Pick<Running, "assignment"> & Pick<Launch, "gate" | "asks"> = {},
): Running {
  const { hooks, observer, store } = engine;
  const controller = new AbortController();
  const call: Running = {
    record,
    opened,
    controller,
    signal: controller.signal,
    fence: fenceOf(record),
    leaseConfirmed,
    isStarting: record.part.state.case !== "pending",
    gate,
    ...(assignment !== undefined && { assignment }),
    ...(asks && { asks }),
    observed: observer.began(record, asks && waitOf(asks)),
    hooks: createCallHooks(hooks.in(workspaceRoot(opened.workspace.name)), record.part, {
      stored: record.hooked,
      store: (hooked) => noteCall(engine, call.fence, { hooked }),
      newId: () => newId("per", store.now()),
      now: store.now,
    }),
  };
  return call;
}

/** Returns the time in which a call waited for these asks; undefined if it waited for none. */
function waitOf(asks: readonly AskRecord[]): WaitTime | undefined {
  if (asks.length === 0) return undefined;
  const from = Math.min(...asks.map(({ request }) => request.created));
  return { from, to: Math.max(from, ...asks.map(({ settled }) => settled?.time ?? from)) };
}

/**
 * Runs a call that this replica holds the lease of, from resolving its tool to its terminal state. Never throws: every failure
 * becomes the call's state, unless the call is no longer ours to write. Returns the call as this run ended it.
 */
export async function runCall(engine: Engine, call: Running, ready?: Startable): Promise<ToolPart | undefined> {
  try {
    if (!ready) await engine.registry.refresh(workspaceRoot(call.opened.workspace.name));
    const tool = ready?.tool ?? resolveTool(engine, call.record, call.opened);
    call.tool = tool;
    await runBeforeHooks(engine, call);
    const approved = ready ?? (await approveCall(engine, call, tool));
    // It may have been stopped while its start mark was written.
    const stop = stopOf(engine, call.opened, call.record.part.agent);
    if (stop) throw new CallEnd(ToolErrorReason.CANCELLED, `${stopText(stop)}. ${adviceText}`);
    const returned = await executeBody(engine, call, tool, approved);
    return await settleCall(engine, call, approved.plan, returned);
  } catch (cause) {
    return await endOrLeave(engine, call, cause);
  } finally {
    call.observed.over(call.record.part);
  }
}

/** Ends a call without a result; leaves it, if a worker can still bring one or may be given the call again. */
export async function endOrLeave(engine: Engine, call: Running, cause: unknown): Promise<ToolPart | undefined> {
  if (!call.signal.aborted && (await leaveCall(engine, call, cause))) return undefined;
  return await failCall(engine, call, cause);
}

/** Lets a call whose body was not entered wait again, and offers it to the workers of all replicas. */
async function giveBack(engine: Engine, call: Running, mark: RemoteMark, why: string): Promise<void> {
  const { store } = engine;
  const { ref, part } = call.record;
  const title = `Waiting for a worker that runs ${part.tool}: ${why}`;
  await store.recordEvents(call.fence, [create(ToolProgressSchema, { callId: ref.callId, title })]);
  const queued = waitAgain(engine, call.record, call.tool);
  if (await store.restartCall(ref, mark, queued)) await offerAgain(engine, ref, queued.definitionId);
}

async function leaveCall(engine: Engine, call: Running, cause: unknown): Promise<boolean> {
  const { log, store } = engine;
  const { fence, tool } = call;
  const { attempts, ref, remote } = call.record;
  if (!remote) return false;
  try {
    if (cause instanceof NotEntered) {
      await giveBack(engine, call, remote, cause.message);
      return true;
    }
    const mayRepeat = cause instanceof ExecutorLost && tool?.idempotent && attempts < maxIdempotentAttempts;
    if (!mayRepeat && !(cause instanceof WorkerElsewhere)) return false;
    await store.parkCall(fence, 0);
  } catch (error) {
    // The lease lapses, and recovery leaves the call to its worker.
    log.warn("a call of a worker keeps its owner", { error, callId: ref.callId });
  }
  return true;
}
