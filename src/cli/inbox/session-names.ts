import type { ServerConnection } from "../connection/connection.ts";
import { terminalLine } from "../terminal/terminal-safe.ts";

/** Names sessions by title: fetches each title once, and calls `onNews` when one arrives. */
export function createInboxSessionNames(
  { sessions }: ServerConnection,
  onNews: () => void,
): { of(sessionId: string): string } {
  const titles = new Map<string, string>();

  async function learn(sessionId: string): Promise<void> {
    const { session } = await sessions.getSession({ sessionId });
    titles.set(sessionId, session?.title ?? "");
    onNews();
  }

  return {
    of(sessionId) {
      const title = titles.get(sessionId);
      if (title === undefined) {
        titles.set(sessionId, "");
        // The id alone is a good name as well.
        learn(sessionId).catch(() => undefined);
      }
      return terminalLine(title ? `${title} (${sessionId})` : sessionId);
    },
  };
}
