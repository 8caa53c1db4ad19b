import { createSessionFeed, type SessionFeed } from "../session/session-feed.ts";
import type { ConsoleConnection } from "../stream/connection.ts";

/** The session of calls that were made in the console. */
export interface HandSession {
  readonly id: string;
  readonly feed: SessionFeed;
}

/** Opens one session for all tools of a visit: with the first call, and again with the next one after a failure. */
export function createHandSession(connection: ConsoleConnection): { open(): Promise<HandSession>; close(): void } {
  let opened: Promise<HandSession> | undefined;
  async function open(): Promise<HandSession> {
    const { session } = await connection.sessions.createSession({ title: "Calls from the console" });
    const id = session?.id ?? "";
    return { id, feed: createSessionFeed(connection, id) };
  }
  return {
    open() {
      opened ??= open().catch((error: unknown) => {
        opened = undefined;
        throw error;
      });
      return opened;
    },
    /** Unsubscribes from the session, which stays with its calls. */
    close() {
      opened?.then(
        ({ feed }) => feed.close(),
        () => undefined,
      );
    },
  };
}
