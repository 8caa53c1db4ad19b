/** Told a session with news, and the first new number. */
export type NewsListener = (sessionId: string, seq: number) => void;

/** Who wants to know of news, by session. */
export interface SqliteDoorbell {
  /** Listens to one session, or to all if none is named; returns the function that ends it. */
  listen(sessionId: string | undefined, listener: NewsListener): () => void;
  ring: NewsListener;
}

/** A session's news cost only those who listen to it. */
export function createSqliteDoorbell(): SqliteDoorbell {
  const listeners = new Map<string | undefined, Set<NewsListener>>();
  return {
    listen(sessionId, listener) {
      // One object for each listening, so that the same function can listen twice and leave once.
      const listening = (...news: Parameters<NewsListener>) => listener(...news);
      const others = listeners.get(sessionId) ?? new Set();
      listeners.set(sessionId, others.add(listening));
      return () => {
        others.delete(listening);
        if (others.size === 0 && listeners.get(sessionId) === others) listeners.delete(sessionId);
      };
    },
    ring(sessionId, seq) {
      for (const listener of listeners.get(sessionId) ?? []) listener(sessionId, seq);
      for (const listener of listeners.get(undefined) ?? []) listener(sessionId, seq);
    },
  };
}
