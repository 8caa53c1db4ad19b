import { createNewsListeners } from "../news-listeners.ts";
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
    known.set(sessionId, Math.max(seq, known.get(sessionId) ?? 0));
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
      known.set(sessionId, lastSeq);
    },

    /** Takes a session's events as known. Notifies its own subscribers all the same: they may have come after these events. */
    begin(sessionId: string, lastSeq: number): void {
      known.set(sessionId, Math.max(lastSeq, known.get(sessionId) ?? 0));
      log.refresh(sessionId, lastSeq);
      listeners.notifySession(sessionId, lastSeq + 1);
    },
  };
}
