import type { SessionService } from "../../../gen/opencode/tool/v1/session_service_pb.ts";
import type { Calls } from "../../call/calls.ts";
import type { StoreMembership } from "../../call/ports.ts";
import type { Sessions } from "../../call/sessions.ts";
import { nextPageToken, pageBefore } from "./paging.ts";
import type { ServiceFunctions } from "./rpc.ts";

/** Domain that SessionService works on. */
export interface SessionServiceDomain {
  sessions: Sessions;
  calls: Calls;
  store: Pick<StoreMembership, "storeIdOf">;
}

/** Returns the functions of SessionService. */
export function sessionService({
  sessions,
  calls,
  store,
}: SessionServiceDomain): ServiceFunctions<typeof SessionService> {
  return {
    async createSession(request, { principal }) {
      const session = await sessions.create(principal, request);
      return { session, storeId: store.storeIdOf(session.rootSessionId) };
    },
    async getSession({ sessionId }, { principal }) {
      return { session: await sessions.get(principal, sessionId) };
    },
    async listSessions(request, context) {
      const page = pageBefore(request, context);
      const root = request.rootSessionId;
      const found = await sessions.list(context.principal, { ...page, ...(root !== "" && { root }) });
      const ids = found.map(({ id }) => id);
      return { sessions: found, nextPageToken: nextPageToken(ids, page) };
    },
    async closeSession({ sessionId }, { principal }) {
      await calls.closeSession(principal, sessionId);
      return { session: await sessions.get(principal, sessionId) };
    },
  };
}
