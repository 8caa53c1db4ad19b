import type { Principal } from "../core/principal.ts";
import { noSuchSession } from "../core/request-error.ts";
import type { SessionStore } from "./ports.ts";
import { mayAccess, readsAll } from "./session-access.ts";

/** Returns the root of a session that the principal may read, or undefined for an unknown session if it may read all; throws otherwise. */
export async function readableRoot(
  store: Pick<SessionStore, "getSession">,
  principal: Principal,
  sessionId: string,
): Promise<string | undefined> {
  const session = await store.getSession(sessionId);
  if (session ? !mayAccess(principal, session, "read") : !readsAll(principal)) throw noSuchSession(sessionId);
  return session?.rootSessionId;
}
