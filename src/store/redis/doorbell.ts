import type { RedisLog } from "./log.ts";

/** Told a session with news, and the first new number. */
export type NewsListener = (sessionId: string, seq: number) => void;

/** Who wants to know of news, by session. */
export type RedisDoorbell = ReturnType<typeof createRedisDoorbell>;

/**
 * Rings for what this replica did, for what others tell of, and (if that was lost) for what the store shows. The log hears
 * it first, so that whoever is woken finds the news, and is told which sessions are listened to.
 */
export function createRedisDoorbell(log: Pick<RedisLog, "refresh" | "listen" | "forget">) {
  const listeners = new Map<string | undefined, Set<NewsListener>>();
  // The last number of each session that is known here, as long as somebody listens.
  const known = new Map<string, number>();

  function ring(sessionId: string, seq: number): void {
    log.refresh(sessionId, seq);
    if (listeners.size === 0) return;
    known.set(sessionId, Math.max(seq, known.get(sessionId) ?? 0));
    for (const listener of listeners.get(sessionId) ?? []) listener(sessionId, seq);
    for (const listener of listeners.get(undefined) ?? []) listener(sessionId, seq);
  }

  return {
    ring,

    listen(sessionId: string | undefined, listener: NewsListener): () => void {
      // One object for each listening, so that the same function can listen twice and leave once.
      const listening = (...news: Parameters<NewsListener>) => listener(...news);
      const others = listeners.get(sessionId) ?? new Set();
      if (sessionId !== undefined && others.size === 0) log.listen(sessionId);
      listeners.set(sessionId, others.add(listening));
      return () => {
        others.delete(listening);
        if (others.size === 0 && listeners.get(sessionId) === others) {
          listeners.delete(sessionId);
          if (sessionId !== undefined) log.forget(sessionId);
        }
        if (listeners.size === 0) known.clear();
      };
    },

    /** Whether somebody listens to this very session. */
    isHeard: (sessionId: string) => listeners.has(sessionId),

    /** The sessions that somebody listens to; `undefined` stands for all. */
    wanted: () => [...listeners.keys()],

    /** Rings for all numbers up to this one that were never rung for. */
    catchUp(sessionId: string, lastSeq: number): void {
      ring(sessionId, Math.min((known.get(sessionId) ?? 0) + 1, lastSeq + 1));
      known.set(sessionId, lastSeq);
    },

    /** Takes what a session has as known; who listens to it alone is rung all the same, since it may have come since then. */
    begin(sessionId: string, lastSeq: number): void {
      known.set(sessionId, Math.max(lastSeq, known.get(sessionId) ?? 0));
      log.refresh(sessionId, lastSeq);
      for (const listener of listeners.get(sessionId) ?? []) listener(sessionId, lastSeq + 1);
    },
  };
}
