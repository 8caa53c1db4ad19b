import { clone, create } from "@bufbuild/protobuf";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import { type SessionEvent, SessionEventSchema } from "../../gen/opencode/tool/v1/event_pb.ts";
import type { CallRef } from "../core/call-ref.ts";
import { RequestError } from "../core/request-error.ts";
import type { EventLog, LogPage, OutputStore, SessionStore, StoreMembership } from "./ports.ts";

/** The next event, or without one a heartbeat of a quiet log; a reader resumes after `lastSeq`. */
export interface FollowedEvent {
  event?: SessionEvent;
  lastSeq: number;
}

const pageBytes = 256 * 1024;
/** Interval of heartbeats unless the reader names another one. */
export const defaultHeartbeatMs = 15_000;

/** Logs of sessions, and the store that has them. */
export type Logs = Pick<EventLog, "onNews" | "readLog"> & Pick<StoreMembership, "storeIdOf">;

/** A page of a log, its events in any form, with the store that had it: another one may have lost events. */
export interface StoredPage extends Omit<LogPage, "events"> {
  readonly events: readonly { readonly seq: number | bigint }[];
  readonly storeId: string;
}

/** Reads a page of a session's log. */
export async function readPage(
  store: Logs,
  { sessionId, root }: Pick<CallRef, "sessionId" | "root">,
  afterSeq: number,
) {
  return { ...(await store.readLog(sessionId, afterSeq, pageBytes)), storeId: store.storeIdOf(root) };
}

/**
 * Reads a log after a sequence number up to its end as it then is. Yields each page with the number up to which it was read. A gap
 * before a page is the error of readers that need every event; for others reading goes on after what was lost.
 */
export async function* readToEnd<P extends StoredPage>(
  sessionId: string,
  from: { seq: number; storeId?: string | undefined },
  read: (afterSeq: number) => Promise<P>,
): AsyncGenerator<P & { seq: number; gap: RequestError | undefined }, void> {
  for (let { seq, storeId } = from; ; ) {
    const page = await read(seq);
    const lost = changed(sessionId, storeId, page.storeId) ?? beyondEnd(sessionId, seq, page);
    const gap = lost ?? trimmed(sessionId, seq, page);
    const last = page.events.at(-1);
    if (lost) seq = page.lastSeq;
    else if (gap) seq = page.firstSeq - 1;
    else if (last) seq = Number(last.seq);
    // A store that omits events must not keep this loop from ever ending.
    else if (seq < page.lastSeq)
      throw new Error(`the log of session ${sessionId} ends at ${page.lastSeq}, and has no event after ${seq}`);
    ({ storeId } = page);
    yield { ...page, seq, gap };
    if (seq >= page.lastSeq) return;
  }
}

/**
 * Reads a session's log after a sequence number, then waits for more, until the signal is aborted (then it throws the
 * reason). Readers pull, so a slow reader costs one page of memory and delays no other reader. With `callId` events of other
 * calls only advance `lastSeq`. Output events name their bytes; `createFilling` adds them.
 */
export async function* followLog(
  calls: Logs,
  {
    sessionId,
    root,
    afterSeq,
    callId,
    heartbeatMs = defaultHeartbeatMs,
  }: {
    sessionId: string;
    root: string;
    afterSeq: number;
    callId?: string | undefined;
    heartbeatMs?: number | undefined;
  },
  signal: AbortSignal,
): AsyncGenerator<FollowedEvent, never> {
  const bell = createBell();
  const storeId = calls.storeIdOf(root);
  const read = async (seq: number) => {
    signal.throwIfAborted();
    // While a failover is under way the log cannot be read.
    const gap = changed(sessionId, storeId, calls.storeIdOf(root));
    if (gap) throw gap;
    return await readPage(calls, { sessionId, root }, seq);
  };
  const off = calls.onNews(sessionId, bell.ring);
  // A reader that resumes a quiet log gets a heartbeat at once, so that it knows that it is connected.
  let hasYielded = false;
  try {
    for (let lastSeq = afterSeq; ; ) {
      for await (const { events, gap } of readToEnd(sessionId, { seq: lastSeq, storeId }, read)) {
        if (gap) throw gap;
        for (const event of events) {
          lastSeq = Number(event.seq);
          if (callId !== undefined && callOf(event) !== callId) continue;
          yield { event, lastSeq };
          hasYielded = true;
        }
      }
      if (!hasYielded) yield { lastSeq };
      hasYielded = true;
      if ((await bell.wait(heartbeatMs, signal)) === "quiet") yield { lastSeq };
    }
  } finally {
    off();
  }
}

/** Returns the id of the call of this session that an event is about; undefined for events of child sessions and grants. */
export function callOf({ sessionId, event }: SessionEvent): string | undefined {
  switch (event.case) {
    case "part":
    case "progress":
    case "output":
    case "backgroundEnded":
      return event.value.callId;
    case "permissionAsked":
      return event.value.sessionId === sessionId ? event.value.tool?.callId : undefined;
    case "permissionSettled":
    case "permissionVoted":
    case "permissionEscalated":
      return event.value.sessionId === sessionId ? event.value.callId : undefined;
    default:
      return undefined;
  }
}

/**
 * Creates the step that adds the bytes to output events, which only name them. Concurrent readers of one event share one
 * read of the output store and one filled event.
 */
export function createFilling(outputs: Pick<OutputStore, "read">) {
  // Only reads under way: a filled event is not retained here.
  const filling = new Map<SessionEvent, Promise<SessionEvent>>();

  async function fill(event: SessionEvent, root: string): Promise<SessionEvent> {
    const copy = clone(SessionEventSchema, event);
    if (copy.event.case !== "output") return copy;
    const { output, offset, length } = copy.event.value;
    const read = await outputs.read(root, output.slice(output.indexOf(":") + 1), Number(offset), length);
    if (read) copy.event.value.data = new Uint8Array(read.data);
    return copy;
  }

  function share(event: SessionEvent, root: string): Promise<SessionEvent> {
    const work = fill(event, root).finally(() => filling.delete(event));
    filling.set(event, work);
    return work;
  }

  return {
    /** Yields the events of a session of this tree, output events with their bytes. */
    async *from(followed: AsyncIterable<FollowedEvent>, root: string): AsyncGenerator<FollowedEvent> {
      for await (const { event, lastSeq } of followed) {
        if (event?.event.case !== "output") {
          yield event ? { event, lastSeq } : { lastSeq };
          continue;
        }
        yield { event: await (filling.get(event) ?? share(event, root)), lastSeq };
      }
    },
  };
}

/** Creates a wake-up signal for one waiter. A ring while the waiter is not waiting is remembered. */
export function createBell() {
  let rung = false;
  let wake: (() => void) | undefined;
  return {
    ring(): void {
      rung = true;
      wake?.();
    },
    /** Resolves at the next ring ("news"), at once if it rang since the last wait, or after a while ("quiet"). */
    async wait(ms: number, signal: AbortSignal): Promise<"news" | "quiet"> {
      if (!rung && !signal.aborted) {
        await new Promise<void>((resolve) => {
          const timer = setTimeout(done, ms);
          signal.addEventListener("abort", done, { once: true });
          wake = done;
          function done(): void {
            clearTimeout(timer);
            signal.removeEventListener("abort", done);
            wake = undefined;
            resolve();
          }
        });
      }
      signal.throwIfAborted();
      const result = rung ? "news" : "quiet";
      rung = false;
      return result;
    },
  };
}

/** Refuses a reader whose next event is not stored any more. */
function trimmed(sessionId: string, afterSeq: number, { firstSeq, lastSeq }: StoredPage) {
  if (afterSeq + 1 >= firstSeq) return undefined;
  return new RequestError(
    ErrorReason.HISTORY_TRIMMED,
    `the log of session ${sessionId} has numbers ${firstSeq} to ${lastSeq}, nothing to go on from after ${afterSeq}; watch with snapshot, or after ${Math.max(0, firstSeq - 1)}`,
    { first_seq: String(firstSeq), last_seq: String(lastSeq) },
  );
}

/** Refuses a reader of another store. */
function changed(sessionId: string, before: string | undefined, now: string) {
  if (before === undefined || before === now) return undefined;
  return new RequestError(
    ErrorReason.STORE_CHANGED,
    `the store of session ${sessionId} is ${now}, not ${before}: a failover may have lost events that were sent. Watch again with snapshot`,
    { session_id: sessionId, store_id: now },
  );
}

/** Refuses a reader that has seen more events than there are: a backup was restored, or another store has the session. */
function beyondEnd(sessionId: string, afterSeq: number, { lastSeq, storeId }: StoredPage) {
  if (afterSeq <= lastSeq) return undefined;
  return new RequestError(
    ErrorReason.STORE_CHANGED,
    `the log of session ${sessionId} ends at ${lastSeq}, before ${afterSeq}: events were lost, and later ones have their numbers; watch with snapshot`,
    { session_id: sessionId, last_seq: String(lastSeq), store_id: storeId },
  );
}

/** Creates an event of a snapshot: it describes the state at that sequence number and is not in the log. */
export function snapshotEvent(
  sessionId: string,
  seq: number,
  time: number,
  event: SessionEvent["event"],
): SessionEvent {
  return create(SessionEventSchema, { seq: BigInt(seq), time, sessionId, event });
}

/** Waits for the events of calls. All waits in a session share one reader of its log. */
export type Waits = ReturnType<typeof createWaits>;

/** Interval after which a waiter checks its call even without news. */
const quietMs = 60_000;

/** Reader of one session's log. */
interface Reader {
  readonly waiting: Set<{ readonly callId: string; readonly bell: ReturnType<typeof createBell> }>;
  /** Resolves when every event from then on is read. */
  readonly begun: Promise<void>;
  readonly stop: AbortController;
  /** Reason for which it stopped reading. */
  failure?: unknown;
}

/** Creates waits over the logs of a store. */
export function createWaits(calls: Logs & Pick<SessionStore, "getSession">) {
  const readers = new Map<string, Reader>();

  function startReading({ sessionId, root }: CallRef): Reader {
    const { promise: begun, resolve: begin } = Promise.withResolvers<void>();
    const reader: Reader = { waiting: new Set(), begun, stop: new AbortController() };
    // A single waiter checks its record at once, without waiting for the reader.
    const off = calls.onNews(sessionId, () => {
      const [first, ...others] = reader.waiting;
      if (others.length === 0) first?.bell.ring();
    });
    readEvents(calls, { sessionId, root }, reader, begin).catch((cause: unknown) => {
      // Each waiter handles the failure; a later wait starts another reader.
      off();
      forget(sessionId, reader);
      reader.failure = cause;
      begin();
      for (const { bell } of reader.waiting) bell.ring();
    });
    return reader;
  }

  function forget(sessionId: string, reader: Reader): void {
    if (readers.get(sessionId) === reader) readers.delete(sessionId);
  }

  return {
    /** Begins a wait for news of a call: every event of it from when this resolves is news. */
    async begin(ref: CallRef) {
      const reader = readers.get(ref.sessionId) ?? startReading(ref);
      readers.set(ref.sessionId, reader);
      const waiter = { callId: ref.callId, bell: createBell() };
      reader.waiting.add(waiter);
      await reader.begun;
      return {
        /** Resolves when there may be news since the wait began, or after `ms`; throws if the log cannot be read. */
        async news(signal: AbortSignal, ms = quietMs): Promise<void> {
          if (reader.failure === undefined) await waiter.bell.wait(Math.min(ms, quietMs), signal);
          if (reader.failure !== undefined) throw reader.failure;
        },
        /** Ends the wait. */
        end(): void {
          reader.waiting.delete(waiter);
          if (reader.waiting.size > 0) return;
          forget(ref.sessionId, reader);
          reader.stop.abort();
        },
      };
    },
  };
}

/** Reads the log from its end on and wakes the calls that an event is about. */
async function readEvents(
  calls: Logs & Pick<SessionStore, "getSession">,
  { sessionId, root }: Pick<CallRef, "sessionId" | "root">,
  { waiting, stop }: Reader,
  begin: () => void,
): Promise<void> {
  const afterSeq = Number((await calls.getSession(sessionId))?.lastSeq ?? 0n);
  begin();
  for await (const { event } of followLog(calls, { sessionId, root, afterSeq }, stop.signal)) {
    const about = event && callOf(event);
    for (const { callId, bell } of waiting) if (callId === about) bell.ring();
  }
}
