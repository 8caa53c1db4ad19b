import { setNewest } from "../../core/bounded-map.ts";
import { createNewsListeners } from "../recent-events.ts";
import type { RedisLog } from "./log.ts";

/** News of the sessions, and their subscribers. */
export type RedisNews = ReturnType<typeof createRedisNews>;

/**
 * Creates the news of one replica: it publishes news from its steps, from other replicas' messages, and (if a message was
 * lost) from polling. The log is refreshed first, so that a notified subscriber finds the events, and learns which
 * sessions have subscribers.
 */
export function createRedisNews(log: Pick<RedisLog, "refresh" | "listen" | "forget">) {
  // The last known sequence number of each session, while there are subscribers.
  const known = new Map<string, number>();
  const know = (sessionId: string, seq: number) => setNewest(known, sessionId, seq, maxKnown);
  const listeners = createNewsListeners({
    onFirst(sessionId) {
      if (sessionId !== undefined) log.listen(sessionId);
    },
    onLast(sessionId) {
      if (sessionId !== undefined) log.forget(sessionId);
      if (listeners.isEmpty()) known.clear();
    },
  });

  function publish(sessionId: string, seq: number): void {
    log.refresh(sessionId, seq);
    if (listeners.isEmpty()) return;
    know(sessionId, Math.max(seq, known.get(sessionId) ?? 0));
    listeners.notify(sessionId, seq);
  }

  return {
    publish,
    subscribe: listeners.subscribe,

    /** Returns true if this session has a subscriber; subscribers of all sessions do not count. */
    hasSubscriber: listeners.has,

    /** The sessions with subscribers; `undefined` stands for all. */
    subscribed: listeners.sessions,

    /** Publishes every sequence number up to this one that was not published yet. */
    catchUp(sessionId: string, lastSeq: number): void {
      publish(sessionId, Math.min((known.get(sessionId) ?? 0) + 1, lastSeq + 1));
      know(sessionId, lastSeq);
    },

    /** Takes a session's events as known. Notifies its own subscribers all the same: they may have come after these events. */
    begin(sessionId: string, lastSeq: number): void {
      know(sessionId, Math.max(lastSeq, known.get(sessionId) ?? 0));
      log.refresh(sessionId, lastSeq);
      listeners.notifySession(sessionId, lastSeq + 1);
    },
  };
}

/** Number of sessions and trees of which a replica remembers what it has published. */
export const maxKnown = 100_000;

/** The sessions of which replicas send each other small events, so that their readers need not read the log. */
export type Followed = ReturnType<typeof createFollowed>;

/**
 * Creates the register of followed sessions. A replica with subscribers of a session follows it after the first news from another
 * replica, and repeats that while there are news. Nothing depends on it: an event that is not sent is read from the log.
 */
export function createFollowed() {
  // Ends of the times for which other replicas follow a session, and times until which this replica has said so, in order of use.
  const others = new Map<string, number>();
  const own = new Map<string, number>();

  const set = (times: Map<string, number>, sessionId: string, until: number) =>
    setNewest(times, sessionId, until, maxSessions);

  const isPast = (time: number | undefined) => time === undefined || time <= performance.now();

  return {
    /** Notes that another replica follows these sessions. */
    add(sessionIds: readonly string[]): void {
      for (const id of sessionIds) set(others, id, performance.now() + followMs);
    },

    /** Returns true if another replica follows the session. */
    has: (sessionId: string): boolean => !isPast(others.get(sessionId)),

    /** Returns true once per interval, when this replica has to repeat that it follows the session. */
    isDue(sessionId: string): boolean {
      if (!isPast(own.get(sessionId))) return false;
      set(own, sessionId, performance.now() + followMs / 3);
      return true;
    },
  };
}

const followMs = 60_000;
const maxSessions = 10_000;
