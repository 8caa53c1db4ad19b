import { resolve } from "node:path";
import { create, type MessageInitShape } from "@bufbuild/protobuf";
import {
  type ListGrantsRequest,
  type ListGrantsResponseSchema,
  type PermissionService,
  type WatchPermissionsRequest,
  type WatchPermissionsResponse,
  WatchPermissionsResponseSchema,
} from "../../../gen/opencode/tool/v1/permission_service_pb.ts";
import type { PermissionResponse } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import type { AuditReader } from "../../approval/decisions.ts";
import type { Permissions } from "../../approval/permissions.ts";
import type { AskRecord } from "../../approval/ports.ts";
import { changedFile, notBoundFile, unknownPermission } from "../../approval/refusals.ts";
import { readBoundFile } from "../../call/bound-files.ts";
import type { Calls } from "../../call/calls.ts";
import type { Planner } from "../../call/planner.ts";
import type { StoreMembership } from "../../call/ports.ts";
import type { RuleReview } from "../../call/rule-review.ts";
import type { Sessions } from "../../call/sessions.ts";
import type { Simulation } from "../../call/simulation.ts";
import type { Watcher } from "../../call/watcher.ts";
import { workspaceRoot } from "../../core/paths.ts";
import type { Principal } from "../../core/principal.ts";
import type { Passkeys } from "../../people/passkeys.ts";
import { nextPageToken, pageAfter, pageBefore, pageLimit } from "./paging.ts";
import { answerTooLate, timeHeader } from "./request-failure.ts";
import { approverOf, type EdgeContext, type SenderDomain, type ServiceFunctions } from "./rpc.ts";
import { createStoreMark } from "./store-mark.ts";

/** Domain that PermissionService works on. */
export interface PermissionServiceDomain extends SenderDomain {
  calls: Pick<Calls, "answer">;
  permissions: Permissions;
  sessions: Sessions;
  planner: Planner;
  watcher: Watcher;
  audit: AuditReader;
  simulation: Simulation;
  review: RuleReview;
  store: Pick<StoreMembership, "storeId">;
  passkeys: Pick<Passkeys, "beginStepUp">;
  /** Returns the principal of an answer: its sender, or for a relay the person whom it names. */
  answererOf(sender: Principal, response: PermissionResponse): Promise<Principal> | Principal;
}

/** Returns the functions of PermissionService. */
export function permissionService(domain: PermissionServiceDomain): ServiceFunctions<typeof PermissionService> {
  const { calls, permissions, sessions, planner, watcher, audit } = domain;
  return {
    async respondToPermission(response, context) {
      const sender = await approverOf(domain, context);
      refuseLate(context);
      const principal = await domain.answererOf(sender, response);
      const { session } = await sessions.look(principal, response.sessionId, "read");
      await calls.answer(principal, workspaceRoot(session.workspace), response);
      return {};
    },

    beginStepUp: (_request, { principal }) => domain.passkeys.beginStepUp(principal),

    async rejectPermissions({ sessionId, agent, message }, context) {
      const principal = await approverOf(domain, context);
      const sees = await watcher.visibility(principal, sessionId);
      return { settled: await permissions.rejectAll(principal, { root: sees.root, agent, message, sees }) };
    },

    async getPermission({ permissionId }, { principal }) {
      const { request, settled, part } = await findAsk(domain, principal, permissionId);
      return settled
        ? { permission: request, settled, part }
        : { permission: permissions.readBy(principal, request), part };
    },

    async readBoundFile({ permissionId, path }, { principal }) {
      const ask = await findAsk(domain, principal, permissionId);
      const file = ask.request.view?.files.find((each) => each.path === path);
      if (!file || ask.settled) throw notBoundFile(ask, path);
      const { workspace } = await sessions.open(principal, ask.call.sessionId, "read");
      const read = await readBoundFile(resolve(workspace.directory, path), file);
      if (!read) throw changedFile(ask.request, path);
      return read;
    },

    async listPermissions(request, context) {
      const sees = await watcher.visibility(context.principal, request.sessionId);
      const { requests, next } = await permissions.list({
        ...pageAfter(request, context),
        sees,
        root: sees.root,
      });
      return {
        permissions: requests.map((each) => permissions.readBy(context.principal, each)),
        nextPageToken: next ?? "",
      };
    },

    watchPermissions: (request, context) => watchPermissions(domain, request, context),

    listGrants: (request, context) => listGrants(domain, request, context),

    async revokeGrant({ grantId }, { principal }) {
      return { grant: await permissions.revoke(principal, grantId) };
    },

    async confirmGrant({ grantId }, { principal }) {
      return { grant: await permissions.confirm(principal, grantId) };
    },

    async listDecisions(request, context) {
      const { sessionId, afterSeq } = request;
      const limit = pageLimit(request, context);
      // One more than the page shows if it is the last one.
      const page = { sessionId, afterSeq: Number(afterSeq), limit: limit + 1 };
      const entries = await audit.list(context.principal, page);
      return { entries: entries.slice(0, limit), end: entries.length <= limit };
    },

    async listAudits(request, context) {
      const page = pageBefore(request, context);
      const roots = await audit.gone(page);
      return { rootSessionIds: roots, nextPageToken: nextPageToken(roots, page) };
    },

    explainPermission: (request, { principal }) => planner.explain(principal, request),

    async listRules(request, { principal }) {
      const { agent, workspace, lists } = await planner.rules(principal, request);
      return { agent, workspace, lists: lists.map((list) => ({ ...list, rules: [...list.rules] })) };
    },

    simulatePolicy: (request, { principal, signal }) => domain.simulation.simulate(principal, request, signal),

    async suggestRules({ days, permissionId }, { principal }) {
      const ask = permissionId === "" ? undefined : await findAsk(domain, principal, permissionId);
      return await domain.review.suggest(principal, days || 30, ask?.request);
    },

    getAttention: ({ days }, { principal }) => domain.review.attention(principal, days || 7),
  };
}

/** Reads a permission request of a session that the principal may read. */
async function findAsk(
  { permissions, sessions }: Pick<PermissionServiceDomain, "permissions" | "sessions">,
  principal: Principal,
  permissionId: string,
): Promise<AskRecord> {
  const found = await permissions.find(permissionId);
  const isVisible = found && (await sessions.isReadable(principal, found.call.sessionId));
  if (!isVisible) throw unknownPermission(permissionId);
  return found;
}

/** The time within which an answer has to arrive after the service's time that it names. */
const maxAnswerAgeMs = 10_000;

/**
 * Refuses an answer that names the service's time and arrives long after it: a network that stalled delivers it when the
 * person has left the page or withdrawn it.
 */
function refuseLate({ headers }: EdgeContext): void {
  const sent = headers.get(timeHeader);
  if (sent !== null && !(Date.now() - Number(sent) <= maxAnswerAgeMs)) throw answerTooLate();
}

/** Streams the open permission requests that the principal may see, then new requests and settlements, until the client leaves. */
async function* watchPermissions(
  { watcher, store, permissions }: Pick<PermissionServiceDomain, "watcher" | "store" | "permissions">,
  { sessionId }: WatchPermissionsRequest,
  { principal, signal, heartbeatMs }: EdgeContext,
): AsyncGenerator<WatchPermissionsResponse> {
  const storeMark = createStoreMark(store.storeId);
  for await (const { event, snapshotEnd = false } of watcher.watch(principal, { sessionId, heartbeatMs }, signal)) {
    const read =
      event?.event.case === "permissionAsked"
        ? { ...event, event: { ...event.event, value: permissions.readBy(principal, event.event.value) } }
        : event;
    yield create(WatchPermissionsResponseSchema, { ...(read && { event: read }), snapshotEnd, storeId: storeMark() });
  }
}

/** Returns a page of the grants, of all or of those that a session's tree can use. */
async function listGrants(
  { permissions, sessions }: Pick<PermissionServiceDomain, "permissions" | "sessions">,
  request: ListGrantsRequest,
  context: EdgeContext,
): Promise<MessageInitShape<typeof ListGrantsResponseSchema>> {
  const { sessionId, includeDead } = request;
  const page = pageBefore(request, context);
  const session = sessionId === "" ? undefined : (await sessions.look(context.principal, sessionId, "read")).session;
  const grants = await permissions.listGrants({
    ...page,
    includeDead,
    ...(session && { tree: { root: session.rootSessionId, workspace: workspaceRoot(session.workspace) } }),
  });
  const ids = grants.map(({ id }) => id);
  return { grants, nextPageToken: nextPageToken(ids, page) };
}
