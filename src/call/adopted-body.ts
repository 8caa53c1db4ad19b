import { z } from "zod";
import { noteCall } from "./call-record.ts";
import type { Engine } from "./engine.ts";
import { callOf } from "./log.ts";
import type { CallRecord } from "./ports.ts";
import type { FormerRun, Running } from "./running.ts";

const pageBytes = 1024 * 1024;

/** Reads from the log what the runs of a call have emitted so far. */
export async function readFormerRun({ store }: Engine, { ref, openedSeq }: CallRecord): Promise<FormerRun> {
  const former: FormerRun = { output: undefined, shown: {} };
  for (let after = openedSeq; ; ) {
    const { events } = await store.readLog(ref.sessionId, after, pageBytes);
    const last = events.at(-1);
    if (!last) return former;
    after = Number(last.seq);
    for (const each of events) {
      if (callOf(each) !== ref.callId) continue;
      const { event } = each;
      if (event.case === "output") {
        const { output, offset, length } = event.value;
        former.output = { id: output.slice(output.indexOf(":") + 1), bytes: Number(offset) + length };
      }
      if (event.case === "progress") {
        const { title, metadata } = event.value;
        former.shown = { ...former.shown, ...(title !== undefined && { title }), ...(metadata && { metadata }) };
      }
    }
  }
}

/** Time for which the deadline of a body was paused, stored as the memo of its call. */
const pausesForm = z.object({ pausedMs: z.number(), since: z.number().optional() });

/** Returns how long the deadline of a call was paused until now. */
export function pausedMsOf({ memo }: CallRecord, now: number): number {
  if (memo === undefined) return 0;
  const { pausedMs, since } = pausesForm.parse(JSON.parse(memo));
  return pausedMs + (since === undefined ? 0 : now - since);
}

/** Creates the function that stores for how long the deadline of a remote body is paused, so that a run that adopts it knows. */
export function createPauses(engine: Engine, call: Running) {
  const { store } = engine;
  let pausedMs = pausedMsOf(call.record, store.now());
  let count = 0;
  let since = 0;

  async function note(): Promise<void> {
    const memo = JSON.stringify({ pausedMs, ...(count > 0 && { since }) });
    await noteCall(engine, call.fence, { memo });
    call.record = { ...call.record, memo };
  }

  return async <T>(work: () => Promise<T>): Promise<T> => {
    count += 1;
    if (count === 1) {
      since = store.now();
      await note();
    }
    try {
      return await work();
    } finally {
      count -= 1;
      if (count === 0) {
        pausedMs += store.now() - since;
        if (!call.signal.aborted) await note();
      }
    }
  };
}
