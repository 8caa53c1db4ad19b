import type { SessionEvent } from "../../gen/opencode/tool/v1/event_pb.ts";
import type { ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { lostCall } from "../core/request-error.ts";
import { untilAborted, within } from "../core/within.ts";
import type { Engine } from "./engine.ts";
import { type FollowedEvent, followLog, snapshotEvent } from "./log.ts";
import type { CallRecord } from "./ports.ts";
import { type Run, runKeyOf } from "./running.ts";
import { isTerminal } from "./state.ts";

/** Returns the call when it has ended, or as it is after `ms`. */
export async function waitForEnd(
  { runs, store, waits }: Engine,
  { ref, part: last }: Pick<CallRecord, "ref"> & Partial<Pick<CallRecord, "part">>,
  ms: number,
  signal: AbortSignal,
): Promise<Pick<CallRecord, "ref" | "part">> {
  if (last && isTerminal(last)) return { ref, part: last };
  const until = performance.now() + ms;
  const run = runs.get(runKeyOf(ref));
  // A run of this replica resolves by itself: no need to read every event of its session.
  const part = run && (await endOf(run, ms, signal));
  if (part) return { ref, part };
  const wait = await waits.begin(ref);
  try {
    for (;;) {
      const record = await store.getCall(ref.sessionId, ref.callId);
      if (!record) throw lostCall(ref, store.storeIdOf(ref.root));
      const left = until - performance.now();
      if (isTerminal(record.part) || left <= 0) return record;
      await wait.news(signal, left);
    }
  } finally {
    wait.end();
  }
}

async function endOf(run: Run, ms: number, signal: AbortSignal): Promise<ToolPart | undefined> {
  const { promise, resolve } = Promise.withResolvers<ToolPart | undefined>();
  if (run.waiters === undefined) {
    const waiters = new Set<typeof resolve>();
    run.waiters = waiters;
    void run.done.then((part) => {
      for (const end of waiters) end(part);
    });
  }
  run.waiters.add(resolve);
  try {
    return await untilAborted(
      within(ms, promise, () => undefined),
      signal,
    );
  } finally {
    run.waiters.delete(resolve);
  }
}

/** Yields the call's events after a number, until its terminal state. */
export async function* callEvents(
  { filling, store }: Engine,
  { record }: { record: CallRecord },
  afterSeq: number,
  signal: AbortSignal,
): AsyncGenerator<FollowedEvent> {
  if (isTerminal(record.part) && afterSeq >= Number(record.part.revision)) {
    yield { lastSeq: afterSeq };
    return;
  }
  const { sessionId, callId, root } = record.ref;
  const from = Math.max(afterSeq, record.openedSeq - 1);
  for await (const followed of filling.from(
    followLog(store, { sessionId, root, afterSeq: from, callId }, signal),
    root,
  )) {
    yield followed;
    if (isEnd(followed.event)) return;
  }
}

/** A request to watch a session. */
export interface WatchOptions {
  sessionId: string;
  afterSeq: number;
  /** Only events of this call. */
  callId?: string | undefined;
  /** Starts with the open calls and asks instead of `afterSeq`. */
  snapshot: boolean;
  heartbeatMs?: number | undefined;
}

/** Yields a session's events after a number; with `snapshot` first the open calls and asks, then the events after them. */
export async function* watchSession(
  engine: Engine,
  root: string,
  { sessionId, afterSeq, callId, snapshot, heartbeatMs }: WatchOptions,
  signal: AbortSignal,
): AsyncGenerator<FollowedEvent & { snapshotEnd?: boolean }> {
  const { filling, store } = engine;
  let from = afterSeq;
  if (snapshot) {
    // The number is read first: an event in between is in the snapshot and sent again, never missed.
    from = Number((await store.getSession(sessionId))?.lastSeq ?? 0n);
    yield* snapshotOf(engine, sessionId, callId, from);
    yield { lastSeq: from, snapshotEnd: true };
  }
  yield* filling.from(followLog(store, { sessionId, root, afterSeq: from, callId, heartbeatMs }, signal), root);
}

async function* snapshotOf(
  { asksOf, store }: Engine,
  sessionId: string,
  callId: string | undefined,
  lastSeq: number,
): AsyncGenerator<FollowedEvent> {
  const at = (event: SessionEvent["event"]) => ({
    event: snapshotEvent(sessionId, lastSeq, store.now(), event),
    lastSeq,
  });
  for await (const { ref, part } of eachOpenCall(store, sessionId)) {
    if (callId !== undefined && ref.callId !== callId) continue;
    yield at({ case: "part", value: part });
    for (const { request, settled } of part.permissionIds.length > 0 ? await asksOf(ref) : [])
      if (!settled) yield at({ case: "permissionAsked", value: request });
  }
}

/** Yields the open calls of a session. A few are in memory, however many there are and however slowly they are taken. */
export async function* eachOpenCall(
  store: Pick<Engine["store"], "listCalls">,
  sessionId: string,
): AsyncGenerator<CallRecord, void> {
  for (let after: CallRecord | undefined; ; ) {
    const page = await store.listCalls({ sessionId, open: true, limit: openPage, ...(after && { after }) });
    after = page.at(-1);
    yield* page.filter(({ part }) => !isTerminal(part));
    if (page.length < openPage) return;
  }
}

/** Calls of a page, each with its input. */
const openPage = 10;

function isEnd(event: SessionEvent | undefined): boolean {
  return event?.event.case === "part" && isTerminal(event.event.value);
}
