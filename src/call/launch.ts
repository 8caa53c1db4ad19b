import { newId } from "../core/ids.ts";
import { createCallHooks } from "./call-hooks.ts";
import { noteCall } from "./call-record.ts";
import type { StartGate } from "./children.ts";
import type { Engine } from "./engine.ts";
import type { CallRecord } from "./ports.ts";
import { runCall } from "./run.ts";
import { fenceOf, type Ready, type Running, runKeyOf } from "./running.ts";
import type { OpenSession } from "./sessions.ts";

/** Starts the run of a call that this replica holds the lease of. The run has its own signal: the request that made the call may end. */
export function launchCall(
  engine: Engine,
  record: CallRecord,
  opened: OpenSession,
  leaseConfirmed: number,
  { ready, gate }: { ready?: Ready | undefined; gate?: StartGate | undefined } = {},
): void {
  const { runs } = engine;
  const key = runKeyOf(record.ref);
  const call = newRunning(engine, record, opened, leaseConfirmed, { gate });
  const done = runCall(engine, call, ready).finally(() => {
    if (runs.get(key)?.call === call) runs.delete(key);
  });
  runs.set(key, { call, done });
}

/** Creates the state of a run, for a call at a fence. */
export function newRunning(
  engine: Engine,
  record: CallRecord,
  opened: OpenSession,
  leaseConfirmed: number,
  { gate, assignment }: Pick<Running, "assignment"> & { gate?: StartGate | undefined } = {},
): Running {
  const { hooks, observer, store } = engine;
  const controller = new AbortController();
  const fence = fenceOf(record);
  return {
    record,
    opened,
    controller,
    signal: controller.signal,
    fence,
    leaseConfirmed,
    isStarting: record.part.state.case !== "pending",
    gate,
    ...(assignment !== undefined && { assignment }),
    observed: observer.began(record),
    hooks: createCallHooks(hooks, record.part, {
      stored: record.hooked,
      store: (hooked) => noteCall(engine, fence, { hooked }),
      newId: () => newId("per", store.now()),
      now: store.now,
    }),
  };
}
