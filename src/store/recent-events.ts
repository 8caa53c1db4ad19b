import type { SessionEvent } from "../../gen/opencode/tool/v1/event_pb.ts";

/** The latest events of the sessions in use, so that whoever watches live reads nothing back from disk. */
export interface RecentEvents {
  /** Keeps the next event of a session; what is not next to those that are kept takes their place, what is older changes nothing. */
  add(event: SessionEvent, bytes: Uint8Array): void;
  /** The event of this number, with its binary form. */
  at(sessionId: string, seq: bigint): RecentEvent | undefined;
  /** The events after a number, up to about `maxBytes`; undefined if they are not all here. */
  after(sessionId: string, seq: number, maxBytes: number): SessionEvent[] | undefined;
  forget(sessionId: string): void;
}

/** Bounded for each session, and in all by forgetting the sessions that had no news for longest. */
export function createRecentEvents({ eventsKept, bytesKept, totalBytesKept }: RecentLimits): RecentEvents {
  // In order of the last news.
  const sessions = new Map<string, Recent>();
  let total = 0;

  function forget(sessionId: string): void {
    total -= sessions.get(sessionId)?.bytes ?? 0;
    sessions.delete(sessionId);
  }

  return {
    forget,
    add(event, bytes) {
      const { sessionId } = event;
      const known = sessions.get(sessionId);
      if (known !== undefined && event.seq < known.next) return;
      const recent =
        known !== undefined && event.seq === known.next ? known : { entries: [], bytes: 0, next: event.seq };
      forget(sessionId);
      recent.entries.push({ event, bytes });
      recent.bytes += bytes.byteLength;
      recent.next = event.seq + 1n;
      if (recent.entries.length >= 2 * eventsKept || recent.bytes >= 2 * bytesKept)
        shorten(recent, { eventsKept, bytesKept });
      sessions.set(sessionId, recent);
      total += recent.bytes;
      for (const oldest of sessions.keys()) {
        if (total <= totalBytesKept) break;
        forget(oldest);
      }
    },
    at(sessionId, seq) {
      const recent = sessions.get(sessionId);
      return recent?.entries[Number(seq - recent.next) + recent.entries.length];
    },
    after(sessionId, seq, maxBytes) {
      const recent = sessions.get(sessionId);
      const first = recent?.entries[0]?.event.seq;
      if (recent === undefined || first === undefined || seq + 1 < first) return undefined;
      const events: SessionEvent[] = [];
      let bytes = 0;
      for (let index = seq + 1 - Number(first); index < recent.entries.length; index++) {
        const entry = recent.entries[index];
        if (entry === undefined || (events.length > 0 && bytes + entry.bytes.byteLength > maxBytes)) break;
        events.push(entry.event);
        bytes += entry.bytes.byteLength;
      }
      return events;
    },
  };
}

/** How much is kept: of a session up to twice as much, so that not every event moves all others; and in all. */
export interface RecentLimits {
  eventsKept: number;
  bytesKept: number;
  totalBytesKept: number;
}

/** An event and its binary form. */
export interface RecentEvent {
  event: SessionEvent;
  bytes: Uint8Array;
}

interface Recent {
  entries: RecentEvent[];
  bytes: number;
  /** The number that continues it. */
  next: bigint;
}

function shorten(recent: Recent, { eventsKept, bytesKept }: Omit<RecentLimits, "totalBytesKept">): void {
  let start = recent.entries.length;
  let bytes = 0;
  while (start > 0 && recent.entries.length - start < eventsKept) {
    const size = recent.entries[start - 1]?.bytes.byteLength ?? 0;
    if (bytes > 0 && bytes + size > bytesKept) break;
    bytes += size;
    start -= 1;
  }
  recent.entries.splice(0, start);
  recent.bytes = bytes;
}
