import type { MessageInitShape } from "@bufbuild/protobuf";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import type { Grant, PermissionDecision } from "../../gen/opencode/tool/v1/permission_pb.ts";
import type {
  PermissionRequest,
  PermissionRequestSchema,
  PermissionResponse,
} from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { CallRef } from "../core/call-ref.ts";
import type { Principal } from "../core/principal.ts";
import { RequestError } from "../core/request-error.ts";
import type { ExpandedAsk, Subject } from "../policy/model.ts";
import type { Policy } from "../policy/policy.ts";
import { confirmationRecord, type Decider, revocationRecord } from "./decisions.ts";
import { type JudgedBy, judgeAsks, type UnapprovedAsk, type Verdict } from "./judge-asks.ts";
import type { PlainAlways } from "./offers.ts";
import { toPermissionRequest } from "./permission-request.ts";
import type { AnswerEffects, AskStore, PermissionStore } from "./ports.ts";
import { denyCall, expireAsks, type Rejection, rejectAsks, settleAnswer } from "./settle-answer.ts";
import { type ApprovalContext, listOpenAsks } from "./settlements.ts";

/** Steps of the store that settle an answer. The life of a call reads its call with them, and starts it. */
export type AnswerSteps = Pick<AskStore, "getAsk" | "asksOf" | "settle">;

/** Judges calls, and manages their permission requests, answers and grants. */
export type Permissions = ReturnType<typeof createPermissions>;

/** Creates the permission service of a replica over its store. */
export function createPermissions({
  store,
  policy,
  effects,
  plainAlways,
  newId,
  now,
}: {
  store: PermissionStore;
  policy: Policy;
  effects: AnswerEffects;
  plainAlways: PlainAlways;
  newId(prefix: "per" | "grt"): string;
  now(): number;
}) {
  const context: ApprovalContext = { store, effects, newId, now };
  return {
    /** Judges the asks of a call, see `judgeAsks`. */
    decide: (asks: readonly ExpandedAsk[], subject: Subject, by: JudgedBy): Promise<Verdict> =>
      judgeAsks({ store, policy }, asks, subject, by),
    /** Builds the permission request of an ask; `id` is empty for one that is only shown. */
    request: (
      ask: UnapprovedAsk,
      decisions: readonly PermissionDecision[],
      fields: MessageInitShape<typeof PermissionRequestSchema>,
      subject: Subject,
      id: string,
    ): PermissionRequest =>
      toPermissionRequest(ask, decisions, { ...fields, id, created: now() }, subject, plainAlways),
    /** Settles an ask with an approver's answer; see `settleAnswer`. `steps` replace those of the store. */
    reply: (
      principal: Principal,
      workspace: string,
      response: PermissionResponse,
      steps: AnswerSteps = store,
    ): Promise<void> => {
      const { getAsk, asksOf, settle } = steps;
      return settleAnswer({ ...context, store: { ...store, getAsk, asksOf, settle } }, principal, workspace, response);
    },
    /** Rejects the open asks of a session and its descendants, of an agent, or of that agent there. */
    rejectAll: (principal: Principal, rejection: Rejection) => rejectAsks(context, principal, rejection),
    /** Adds decisions to the audit of a tree, or of the service. */
    note: store.recordDecisions,
    /** Denies a call's open asks, because no approver is present. */
    deny: (call: CallRef): Promise<void> => denyCall(context, call),
    /** Settles the asks whose deadline has passed. */
    expireAsks: (): Promise<void> => expireAsks(context),
    /** Finds an ask, open or settled, by its id. */
    find: store.findAsk,
    /** Lists the open asks that the caller may see, oldest first. */
    list: (filter: Parameters<typeof listOpenAsks>[1]) => listOpenAsks(store, filter),
    listGrants: store.listGrants,
    /** Revokes a grant. Once this resolves, no call starts that relies on it. */
    async revoke(by: Decider, grantId: string): Promise<Grant> {
      const found = await store.getGrant(grantId);
      const grant = found && (await store.revokeGrant(grantId, [revocationRecord(found, by)]));
      if (grant) return grant;
      throw noSuchGrant(grantId);
    },
    /** Lets a grant serve again that a restore suspended. */
    async confirm(by: Decider, grantId: string): Promise<Grant> {
      const found = await store.getGrant(grantId);
      const grant = found && (await store.confirmGrant(grantId, [confirmationRecord(found, by)]));
      if (grant) return grant;
      throw noSuchGrant(grantId);
    },
  };
}

function noSuchGrant(grantId: string): RequestError {
  return new RequestError(ErrorReason.NO_SUCH_GRANT, `grant ${grantId} is not known`, { grant_id: grantId });
}
