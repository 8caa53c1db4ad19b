import { setImmediate } from "node:timers/promises";
import { z } from "zod";
import type { SessionEvent } from "../../gen/opencode/tool/v1/event_pb.ts";
import type { CallRef } from "../core/call-ref.ts";
import { noteCall } from "./call-record.ts";
import type { Engine } from "./engine.ts";
import { callOf, readPage, readToEnd } from "./log.ts";
import type { CallRecord } from "./ports.ts";
import type { FormerRead, FormerRun, Running } from "./running.ts";

/** Reads from the log what the runs of a call have emitted so far. */
export async function readFormerRun(
  engine: Pick<Engine, "formerReads" | "store">,
  { ref, openedSeq }: CallRecord,
): Promise<FormerRun> {
  const read = engine.formerReads.get(ref.sessionId) ?? startRead(engine, ref);
  read.after = Math.min(read.after, openedSeq);
  const former = { output: undefined, shown: {}, files: [] };
  read.former.set(ref.callId, former);
  await read.done;
  return former;
}

function startRead({ formerReads, store }: Pick<Engine, "formerReads" | "store">, ref: CallRef): FormerRead {
  const { sessionId } = ref;
  const done = setImmediate().then(async () => {
    formerReads.delete(sessionId);
    const pages = readToEnd(sessionId, { seq: read.after }, (seq) => readPage(store, ref, seq));
    for await (const { events } of pages)
      for (const each of events) {
        const former = read.former.get(callOf(each) ?? "");
        if (former) addEmitted(former, each);
        addFiles(read, each);
      }
  });
  const read: FormerRead = { after: Number.POSITIVE_INFINITY, former: new Map(), done };
  formerReads.set(sessionId, read);
  return read;
}

function addEmitted(former: FormerRun, { event }: SessionEvent): void {
  if (event.case === "output") {
    const { output, offset, length } = event.value;
    former.output = { id: output.slice(output.indexOf(":") + 1), bytes: Number(offset) + length };
  }
  if (event.case === "progress") {
    const { title, metadata } = event.value;
    former.shown = { ...former.shown, ...(title !== undefined && { title }), ...(metadata && { metadata }) };
  }
}

/** Adds the files of a call to the body that made it. */
function addFiles({ former }: FormerRead, { event }: SessionEvent): void {
  if (event.case !== "part" || event.value.state.case !== "completed") return;
  former.get(event.value.parentCallId)?.files.push(...event.value.state.value.attachments);
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
