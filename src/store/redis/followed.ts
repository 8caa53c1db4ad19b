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

  function set(times: Map<string, number>, sessionId: string, until: number): void {
    times.delete(sessionId);
    times.set(sessionId, until);
    const oldest = times.size > maxSessions ? times.keys().next().value : undefined;
    if (oldest !== undefined) times.delete(oldest);
  }

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
