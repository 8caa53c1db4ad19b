/** Receives a session with news, and the first new sequence number. */
export type NewsListener = (sessionId: string, seq: number) => void;

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
