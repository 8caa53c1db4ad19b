import type { Session } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import type { Principal } from "../core/principal.ts";
import { noSuchSession } from "../core/request-error.ts";
import type { SessionStore } from "./ports.ts";

/** Access that a request needs: make calls (owner), cancel and close (owner, admin), or read. */
export type SessionAccess = "call" | "control" | "read";

/** True if the principal may read every session. */
export function readsAll({ roles }: Principal): boolean {
  return roles.has("approver") || roles.has("watcher") || roles.has("admin");
}

/** True if the principal has that access to the session. */
export function mayAccess(principal: Principal, session: Session, access: SessionAccess): boolean {
  if (principal.session !== undefined && principal.session !== session.id) return false;
  if (session.owner === principal.id) return true;
  if (access === "read") return readsAll(principal);
  return principal.roles.has("admin");
}

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
