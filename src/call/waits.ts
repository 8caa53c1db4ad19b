import type { CallRef } from "../core/call-ref.ts";
import { callOf, createBell, followLog } from "./log.ts";
import type { EventLog, SessionStore, StoreMembership } from "./ports.ts";

/** One wait for news of a call. */
export interface Wait {
  /** Resolves when there may be news since the wait began, or after `ms`; throws if the log cannot be read. */
  news(signal: AbortSignal, ms?: number): Promise<void>;
  /** Ends the wait. */
  end(): void;
}

/** Waits for the events of calls. All waits in a session share one reader of its log. */
export interface Waits {
  /** Begins a wait: every event of the call from when this resolves is news. */
  begin(ref: CallRef): Promise<Wait>;
}

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
export function createWaits(
  calls: EventLog & Pick<SessionStore, "getSession"> & Pick<StoreMembership, "storeIdOf">,
): Waits {
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
    async begin(ref) {
      const reader = readers.get(ref.sessionId) ?? startReading(ref);
      readers.set(ref.sessionId, reader);
      const waiter = { callId: ref.callId, bell: createBell() };
      reader.waiting.add(waiter);
      await reader.begun;
      return {
        async news(signal, ms = quietMs) {
          if (reader.failure === undefined) await waiter.bell.wait(Math.min(ms, quietMs), signal);
          if (reader.failure !== undefined) throw reader.failure;
        },
        end() {
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
  calls: EventLog & Pick<SessionStore, "getSession"> & Pick<StoreMembership, "storeIdOf">,
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
