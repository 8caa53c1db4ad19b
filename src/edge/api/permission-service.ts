import { create } from "@bufbuild/protobuf";
import type { ServiceImpl } from "@connectrpc/connect";
import {
  type PermissionService,
  WatchPermissionsResponseSchema,
} from "../../../gen/opencode/tool/v1/permission_service_pb.ts";
import type { AuditReader } from "../../approval/audit.ts";
import type { Permissions } from "../../approval/permissions.ts";
import type { Planner } from "../../call/planner.ts";
import type { CallStore } from "../../call/ports.ts";
import type { Sessions } from "../../call/sessions.ts";
import type { Watcher } from "../../call/watcher.ts";
import { workspaceRoot } from "../../core/workspace-root.ts";
import { principalOf } from "./access.ts";

/** PermissionService over the domain. */
export function permissionService({
  permissions,
  sessions,
  planner,
  watcher,
  audit,
  store,
}: {
  permissions: Permissions;
  sessions: Sessions;
  planner: Planner;
  watcher: Watcher;
  audit: AuditReader;
  store: Pick<CallStore, "storeId">;
}): ServiceImpl<typeof PermissionService> {
  return {
    async respondToPermission(response, ctx) {
      const principal = principalOf(ctx);
      const { session } = await sessions.look(principal, response.sessionId, "read");
      await permissions.reply(principal, workspaceRoot(session.workspace), response);
      return {};
    },

    async rejectPermissions({ sessionId, message }, ctx) {
      const principal = principalOf(ctx);
      const { session } = await sessions.look(principal, sessionId, "read");
      return { settled: await permissions.rejectAll(principal, { root: session.rootSessionId, sessionId, message }) };
    },

    async listPermissions({ sessionId, pageSize, pageToken }, ctx) {
      const sees = await watcher.visibility(principalOf(ctx), sessionId);
      const { asks, next } = await permissions.list({
        limit: pageSize || 100,
        sees: ({ request }) => sees(request),
        ...(sees.root && { root: sees.root }),
        ...(pageToken && { after: pageToken }),
      });
      return { permissions: asks.map(({ request }) => request), nextPageToken: next ?? "" };
    },

    async *watchPermissions({ sessionId }, ctx) {
      let storeId = store.storeId;
      for await (const { event, snapshotEnd } of watcher.watch(principalOf(ctx), sessionId, ctx.signal)) {
        yield create(WatchPermissionsResponseSchema, {
          ...(event && { event }),
          snapshotEnd: snapshotEnd ?? false,
          storeId,
        });
        storeId = "";
      }
    },

    async listGrants({ sessionId, includeDead, pageSize, pageToken }, ctx) {
      const limit = pageSize || 100;
      const session = sessionId === "" ? undefined : (await sessions.look(principalOf(ctx), sessionId, "read")).session;
      const grants = await permissions.listGrants({
        includeDead,
        limit,
        ...(session && { tree: { root: session.rootSessionId, workspace: workspaceRoot(session.workspace) } }),
        ...(pageToken && { before: pageToken }),
      });
      return { grants, nextPageToken: grants.length < limit ? "" : (grants.at(-1)?.id ?? "") };
    },

    async revokeGrant({ grantId }, ctx) {
      return { grant: await permissions.revoke(principalOf(ctx).id, grantId) };
    },

    async listDecisions({ sessionId, pageSize, afterSeq }, ctx) {
      const page = { sessionId, afterSeq: Number(afterSeq), limit: pageSize || 100 };
      return { entries: await audit.list(principalOf(ctx), page) };
    },

    async listAudits({ pageSize, pageToken }) {
      const limit = pageSize || 100;
      const roots = await audit.gone({ limit, ...(pageToken && { before: pageToken }) });
      return { rootSessionIds: roots, nextPageToken: roots.length < limit ? "" : (roots.at(-1) ?? "") };
    },

    async explainPermission(request, ctx) {
      return await planner.explain(principalOf(ctx), request);
    },

    async listRules(request, ctx) {
      const { agent, workspace, lists } = await planner.rules(principalOf(ctx), request);
      return { agent, workspace, lists: lists.map((list) => ({ ...list, rules: [...list.rules] })) };
    },
  };
}
