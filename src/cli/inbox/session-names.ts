import type { ServerConnection } from "../connection/connection.ts";
import { terminalLine } from "../terminal/terminal-safe.ts";

/** Names sessions as people know them, by title; asks the server for each once, and tells when one has come. */
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
        // A session is good without a title.
        learn(sessionId).catch(() => undefined);
      }
      return terminalLine(title ? `${title} (${sessionId})` : sessionId);
    },
  };
}
