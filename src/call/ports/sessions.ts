import type { Session } from "../../../gen/opencode/tool/v1/session_service_pb.ts";
import type { CallRef } from "../../core/call-ref.ts";

/** Sessions and their trees. */
export interface SessionStore {
  /** Adds the session, or returns the existing one with that id. Refuses a child of a closed session with SESSION_CLOSED. */
  createSession(session: Session): Promise<Session>;
  getSession(id: string): Promise<Session | undefined>;
  /** Lists sessions, newest first; `before` is the id of the last one of the previous page. */
  listSessions(filter: { owner?: string; root?: string; before?: string; limit: number }): Promise<Session[]>;
  /** Marks the session and its descendants closed; returns the open calls of all of them. */
  closeSession(id: string): Promise<CallRef[]>;
}
