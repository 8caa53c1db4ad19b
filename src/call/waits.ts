import type { CallRef } from "../core/call-ref.ts";
import { callOf, createBell, followLog } from "./log.ts";
import type { CallStore } from "./ports.ts";

/** One wait for news of a call. */
export interface Wait {
  /** Resolves when there may be news, those included that came since the wait began; throws if the log cannot be read. */
  news(signal: AbortSignal): Promise<void>;
  /** Ends the wait. */
  end(): void;
}

/** Tells calls what the log says of them: one reader for each session, however many calls wait in it. */
export type Waits = ReturnType<typeof createWaits>;

/** Even without news a waiting call looks again this often. */
const quietMs = 60_000;

export function createWaits(calls: CallStore) {
  const sessions = new Map<string, Reader>();

  function startReading({ sessionId }: CallRef): Reader {
    const stop = new AbortController();
    const waiting = new Set<Waiting>();
    const { promise: begun, resolve: begin } = Promise.withResolvers<void>();
    const reader: Reader = { waiting, begun, stop };

    async function read(): Promise<void> {
      const afterSeq = Number((await calls.getSession(sessionId))?.lastSeq ?? 0n);
      begin();
      for await (const { event } of followLog(calls, { sessionId, afterSeq }, stop.signal)) {
        const about = event && callOf(event);
        for (const { callId, bell } of waiting) if (callId === about) bell.ring();
      }
    }

    // A call that waits alone looks for itself at once.
    const off = calls.onNews(sessionId, () => {
      const [first, ...others] = waiting;
      if (others.length === 0) first?.bell.ring();
    });
    read().catch((cause: unknown) => {
      // Those who wait decide what that means for them; who waits from now on gets another reader.
      off();
      forget(sessionId, reader);
      reader.failure = cause;
      begin();
      for (const { bell } of waiting) bell.ring();
    });
    return reader;
  }

  function forget(sessionId: string, reader: Reader): void {
    if (sessions.get(sessionId) === reader) sessions.delete(sessionId);
  }

  return {
    /** Begins a wait: what happens to the call from when this resolves is news. */
    async begin(ref: CallRef): Promise<Wait> {
      const reader = sessions.get(ref.sessionId) ?? startReading(ref);
      sessions.set(ref.sessionId, reader);
      const waiter = { callId: ref.callId, bell: createBell() };
      reader.waiting.add(waiter);
      await reader.begun;
      return {
        async news(signal) {
          if (reader.failure === undefined) await waiter.bell.wait(quietMs, signal);
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

interface Reader {
  readonly waiting: Set<Waiting>;
  /** Resolves when everything from then on is read. */
  readonly begun: Promise<void>;
  readonly stop: AbortController;
  /** Why it reads no more. */
  failure?: unknown;
}

interface Waiting {
  readonly callId: string;
  readonly bell: ReturnType<typeof createBell>;
}
