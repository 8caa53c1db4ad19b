import type { CallRef } from "../../core/call-ref.ts";
import type { Keys } from "./keys.ts";
import type { Link } from "./link.ts";

/** Notices of calls that a replica leaves unclaimed. */
export type UnclaimedNotices = ReturnType<typeof createUnclaimedNotices>;

/** Creates the notices of one replica. They use the channel of the news. */
export function createUnclaimedNotices({ link, keys, replica }: { link: Link; keys: Keys; replica: string }) {
  const listeners = new Set<(call: CallRef) => void>();
  return {
    async announce(calls: readonly CallRef[]): Promise<void> {
      const named = calls.map(({ root, sessionId, callId }) => [root, sessionId, callId]);
      await link.command("publish", keys.news, JSON.stringify([replica, [], { unclaimed: named }]));
    },
    /** Handles the calls of another replica's message. */
    receive(named: readonly (readonly [root: string, sessionId: string, callId: string])[]): void {
      for (const [root, sessionId, callId] of named)
        for (const listener of listeners) listener({ root, sessionId, callId });
    },
    subscribe(listener: (call: CallRef) => void): () => void {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
  };
}
