import type { SessionEvent } from "../../gen/opencode/tool/v1/event_pb.ts";

/**
 * Creates a cache of the latest events of the sessions in use: live watchers read nothing from disk. It is bounded per session,
 * and in total by evicting the sessions without news for longest.
 */
export function createRecentEvents({ maxEvents, maxBytes, maxTotalBytes }: RecentLimits) {
  // In order of the last news.
  const sessions = new Map<string, Recent>();
  let total = 0;

  function forget(sessionId: string): void {
    total -= sessions.get(sessionId)?.bytes ?? 0;
    sessions.delete(sessionId);
  }

  return {
    forget,
    /** Adds the next event of a session. A gap before it drops the older events; an event older than the last one is ignored. */
    add(event: SessionEvent, bytes: Uint8Array): void {
      const { sessionId } = event;
      const known = sessions.get(sessionId);
      if (known !== undefined && event.seq < known.next) return;
      const recent =
        known !== undefined && event.seq === known.next ? known : { entries: [], bytes: 0, next: event.seq };
      forget(sessionId);
      recent.entries.push({ event, bytes });
      recent.bytes += bytes.byteLength;
      recent.next = event.seq + 1n;
      if (recent.entries.length >= 2 * maxEvents || recent.bytes >= 2 * maxBytes)
        shorten(recent, { maxEvents, maxBytes });
      sessions.set(sessionId, recent);
      total += recent.bytes;
      for (const oldest of sessions.keys()) {
        if (total <= maxTotalBytes) break;
        forget(oldest);
      }
    },
    /** Returns the event with this sequence number, with its binary form. */
    at(sessionId: string, seq: bigint): RecentEvent | undefined {
      const recent = sessions.get(sessionId);
      return recent?.entries[Number(seq - recent.next) + recent.entries.length];
    },
    /** Returns the events after a sequence number, up to about `pageBytes`; undefined if some of them are not cached. */
    after(sessionId: string, seq: number, pageBytes: number): SessionEvent[] | undefined {
      const recent = sessions.get(sessionId);
      const first = recent?.entries[0]?.event.seq;
      if (recent === undefined || first === undefined || seq + 1 < first) return undefined;
      const events: SessionEvent[] = [];
      let bytes = 0;
      for (let index = seq + 1 - Number(first); index < recent.entries.length; index++) {
        const entry = recent.entries[index];
        if (entry === undefined || (events.length > 0 && bytes + entry.bytes.byteLength > pageBytes)) break;
        events.push(entry.event);
        bytes += entry.bytes.byteLength;
      }
      return events;
    },
  };
}

/** Limits of the cache. A session may exceed its own by a factor of two, so that not every event copies the others. */
export interface RecentLimits {
  /** Events of one session. */
  maxEvents: number;
  /** Bytes of one session. */
  maxBytes: number;
  /** Bytes of all sessions. */
  maxTotalBytes: number;
}

/** An event and its binary form. */
export interface RecentEvent {
  event: SessionEvent;
  bytes: Uint8Array;
}

interface Recent {
  entries: RecentEvent[];
  bytes: number;
  /** The next sequence number. */
  next: bigint;
}

function shorten(recent: Recent, { maxEvents, maxBytes }: Omit<RecentLimits, "maxTotalBytes">): void {
  let start = recent.entries.length;
  let bytes = 0;
  while (start > 0 && recent.entries.length - start < maxEvents) {
    const size = recent.entries[start - 1]?.bytes.byteLength ?? 0;
    if (bytes > 0 && bytes + size > maxBytes) break;
    bytes += size;
    start -= 1;
  }
  recent.entries.splice(0, start);
  recent.bytes = bytes;
}

/** Receives a session with news, and the first new sequence number. */
type NewsListener = (sessionId: string, seq: number) => void;

/** Subscriptions to news, by session; `undefined` stands for all sessions. */
export type NewsListeners = ReturnType<typeof createNewsListeners>;

/** Creates the subscriptions of one store. `onFirst` and `onLast` report the first and the last subscriber of a session. */
export function createNewsListeners({ onFirst, onLast }: Partial<Record<"onFirst" | "onLast", SessionCallback>> = {}) {
  const listeners = new Map<string | undefined, Set<NewsListener>>();

  return {
    /** Subscribes to one session, or to all; returns the function that unsubscribes. */
    subscribe(sessionId: string | undefined, listener: NewsListener): () => void {
      // One object per subscription, so that the same function can subscribe twice and unsubscribe once.
      const subscription: NewsListener = (...news) => listener(...news);
      const others = listeners.get(sessionId) ?? new Set();
      if (others.size === 0) onFirst?.(sessionId);
      listeners.set(sessionId, others.add(subscription));
      return () => {
        others.delete(subscription);
        if (others.size > 0 || listeners.get(sessionId) !== others) return;
        listeners.delete(sessionId);
        onLast?.(sessionId);
      };
    },

    /** Notifies the subscribers of one session, without those of all sessions. */
    notifySession(sessionId: string, seq: number): void {
      for (const listener of listeners.get(sessionId) ?? []) listener(sessionId, seq);
    },

    /** Notifies the subscribers of the session, then those of all sessions. */
    notify(sessionId: string, seq: number): void {
      for (const listener of listeners.get(sessionId) ?? []) listener(sessionId, seq);
      for (const listener of listeners.get(undefined) ?? []) listener(sessionId, seq);
    },

    /** Returns true if this session has a subscriber. */
    has: (sessionId: string): boolean => listeners.has(sessionId),
    isEmpty: (): boolean => listeners.size === 0,
    /** The sessions with subscribers; `undefined` stands for all. */
    sessions: (): (string | undefined)[] => [...listeners.keys()],
  };
}

type SessionCallback = (sessionId: string | undefined) => void;
