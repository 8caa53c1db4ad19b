import { create } from "@bufbuild/protobuf";
import { ToolErrorReason, type ToolPart, ToolPartSchema } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { CallRef } from "../core/call-ref.ts";
import { lostCall } from "../core/request-error.ts";
import { CallEnd, CallGone, endAsRead } from "./ends.ts";
import type { Engine } from "./engine.ts";
import { waitForEnd } from "./follow.ts";
import type { CallRecord } from "./ports.ts";
import { type Running, runKeyOf } from "./running.ts";
import { isTerminal } from "./state.ts";
import { endCancelled, isGivenBack } from "./waiting.ts";

/** Ends a call with CANCELLED and returns the stored part; returns a call that has ended as it is. */
export async function cancelCall(engine: Engine, ref: CallRef, message: string): Promise<ToolPart> {
  const { claiming, runs, store } = engine;
  const reason = message === "" ? "The call was cancelled." : message;
  for (;;) {
    const record = await store.getCall(ref.sessionId, ref.callId);
    if (!record) throw lostCall(ref, store.storeIdOf(ref.root));
    if (isTerminal(record.part)) return record.part;
    if (record.spec.delegated && record.part.state.case === "running")
      return await wishCancelled(engine, record, reason);
    const run = runs.get(runKeyOf(ref));
    // A call whose body its worker did not enter is shown as running, and waits without a run.
    if (record.part.state.case === "pending" || isGivenBack(record)) {
      if (await endCancelled(engine, record, reason)) run?.call.controller.abort(new CallGone());
      continue;
    }
    if (run) {
      // If this replica loses the call now, another one goes on with it, and has to know.
      if ((record.spec.durable || record.remote) && record.cancel === undefined) await store.requestCancel(ref, reason);
      run.call.controller.abort(new CallEnd(ToolErrorReason.CANCELLED, reason));
      await run.done;
      continue;
    }
    // Just accepted or claimed here: it has a run in a moment, which can then be aborted.
    const claimed = claiming.get(runKeyOf(ref));
    if (claimed) {
      await claimed;
      continue;
    }
    if (record.spec.durable && record.owner === "") {
      if (await engine.resumeParent(engine, record)) continue;
      if (await endAsRead(engine, record, { reason: ToolErrorReason.CANCELLED, error: reason })) continue;
    }
    await store.requestCancel(ref, reason);
    await waitForEnd(engine, record, 60_000, new AbortController().signal);
  }
}

/** Records the wish to cancel a delegated call that runs: nothing here can stop it, so its state stays as it is. */
async function wishCancelled({ store }: Engine, { ref, part }: CallRecord, reason: string): Promise<ToolPart> {
  await store.requestCancel(ref, reason, create(ToolPartSchema, { ...part, cancelRequested: true }));
  return (await store.getCall(ref.sessionId, ref.callId))?.part ?? part;
}

/**
 * Stops a resumed parent whose body has returned, if it was to be cancelled: the replica that ran it before may have cancelled its
 * calls, and their ends must not complete it.
 */
export async function stopIfCancelled({ store }: Engine, { controller, record: { ref } }: Running): Promise<void> {
  const { cancel } = (await store.getCall(ref.sessionId, ref.callId)) ?? {};
  if (cancel === undefined) return;
  controller.abort(new CallEnd(ToolErrorReason.CANCELLED, cancel));
  controller.signal.throwIfAborted();
}

/** Aborts runs of this replica that another replica was asked to cancel. Calls that have not started were ended there. */
export async function handleCancels({ runs, sessionsWithNews, store }: Engine): Promise<void> {
  const started = Map.groupBy(runs.values(), ({ call }) => (call.isStarting ? call.record.ref.sessionId : undefined));
  const sessionIds = [...sessionsWithNews];
  // News that arrive during this round are for the next one, with the runs of that moment.
  sessionsWithNews.clear();
  for (const sessionId of sessionIds) {
    for (const { call } of started.get(sessionId) ?? []) {
      const record = await store.getCall(sessionId, call.record.ref.callId).catch((cause: unknown) => {
        for (const each of sessionIds) sessionsWithNews.add(each);
        throw cause;
      });
      if (record?.cancel !== undefined) call.controller.abort(new CallEnd(ToolErrorReason.CANCELLED, record.cancel));
    }
  }
}

/** Refuses new calls in a session and its descendants, and cancels the open ones. */
export async function closeSession(engine: Engine, sessionId: string): Promise<void> {
  const open = await engine.store.closeSession(sessionId);
  await Promise.all(open.map((ref) => cancelCall(engine, ref, "The session was closed.")));
}
