import { createSessionFeed, type SessionFeed } from "../session/session-feed.ts";
import type { ConsoleConnection } from "../stream/connection.ts";

/** A session of its own for what a person calls by hand. */
export interface HandSession {
  readonly id: string;
  readonly feed: SessionFeed;
}

/** Opens it with the first call, and again with the next one if that failed; it is one for all tools of a visit. */
export function createHandSession(connection: ConsoleConnection): { open(): Promise<HandSession>; close(): void } {
  let opened: Promise<HandSession> | undefined;
  async function open(): Promise<HandSession> {
    const { session } = await connection.sessions.createSession({ title: "By hand, from the console" });
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
    /** Stops listening; the session stays, with what was called in it. */
    close() {
      opened?.then(
        ({ feed }) => feed.close(),
        () => undefined,
      );
    },
  };
}
