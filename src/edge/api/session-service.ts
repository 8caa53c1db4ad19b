import type { ServiceImpl } from "@connectrpc/connect";
import type { SessionService } from "../../../gen/opencode/tool/v1/session_service_pb.ts";
import type { Calls } from "../../call/calls.ts";
import type { CallStore } from "../../call/ports.ts";
import type { Sessions } from "../../call/sessions.ts";
import { principalOf } from "./access.ts";

/** SessionService over the domain. */
export function sessionService({
  sessions,
  calls,
  store,
}: {
  sessions: Sessions;
  calls: Calls;
  store: Pick<CallStore, "storeId">;
}): ServiceImpl<typeof SessionService> {
  return {
    async createSession(request, ctx) {
      return { session: await sessions.create(principalOf(ctx), request), storeId: store.storeId };
    },
    async getSession({ sessionId }, ctx) {
      return { session: await sessions.get(principalOf(ctx), sessionId) };
    },
    async listSessions({ rootSessionId, pageSize, pageToken }, ctx) {
      const limit = pageSize || 100;
      const page = await sessions.list(principalOf(ctx), {
        limit,
        ...(rootSessionId && { root: rootSessionId }),
        ...(pageToken && { before: pageToken }),
      });
      return { sessions: page, nextPageToken: page.length < limit ? "" : (page.at(-1)?.id ?? "") };
    },
    async closeSession({ sessionId }, ctx) {
      await calls.closeSession(principalOf(ctx), sessionId);
      return { session: await sessions.get(principalOf(ctx), sessionId) };
    },
  };
}
