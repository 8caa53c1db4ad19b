/** Told a session with news, and the first new number. */
export type NewsListener = (sessionId: string, seq: number) => void;

/** Who wants to know of news, by session. */
export type Doorbell = ReturnType<typeof createDoorbell>;

/** Rings for what this replica did, what others tell of, and (if that was lost) what the store shows. */
export function createDoorbell() {
  const listeners = new Map<string | undefined, Set<NewsListener>>();
  // The last number that was rung for each session, as long as somebody listens.
  const rung = new Map<string, number>();

  function ring(sessionId: string, seq: number): void {
    if (listeners.size === 0) return;
    rung.set(sessionId, Math.max(seq, rung.get(sessionId) ?? 0));
    for (const listener of listeners.get(sessionId) ?? []) listener(sessionId, seq);
    for (const listener of listeners.get(undefined) ?? []) listener(sessionId, seq);
  }

  return {
    ring,

    listen(sessionId: string | undefined, listener: NewsListener): () => void {
      // One object for each listening, so that the same function can listen twice and leave once.
      const listening = (...news: Parameters<NewsListener>) => listener(...news);
      const others = listeners.get(sessionId) ?? new Set();
      listeners.set(sessionId, others.add(listening));
      return () => {
        others.delete(listening);
        if (others.size === 0 && listeners.get(sessionId) === others) listeners.delete(sessionId);
        if (listeners.size === 0) rung.clear();
      };
    },

    /** The sessions that somebody listens to; `undefined` stands for all. */
    wanted: () => [...listeners.keys()],

    /** Rings for numbers up to this one that were never rung for. */
    catchUp(sessionId: string, lastSeq: number): void {
      ring(sessionId, Math.min((rung.get(sessionId) ?? 0) + 1, lastSeq + 1));
      rung.set(sessionId, lastSeq);
    },

    /** Takes what a session has now as known. */
    settle: (sessionId: string, lastSeq: number) => void rung.set(sessionId, lastSeq),
  };
}
