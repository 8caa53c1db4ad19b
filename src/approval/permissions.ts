import type { MessageInitShape } from "@bufbuild/protobuf";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import {
  type Grant,
  type PermissionDecision,
  PermissionOutcome,
  type PermissionSettled,
  type Person,
  Shown,
} from "../../gen/opencode/tool/v1/permission_pb.ts";
import {
  PermissionReply,
  type PermissionRequest,
  type PermissionRequestSchema,
  type PermissionResponse,
} from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { CallRef } from "../core/call-ref.ts";
import { currentNeed } from "../core/current-need.ts";
import type { Principal } from "../core/principal.ts";
import { RequestError } from "../core/request-error.ts";
import type { ConfiguredApprovals } from "../policy/approval-rules.ts";
import type { ExpandedAsk, Subject } from "../policy/model.ts";
import type { Policy } from "../policy/policy.ts";
import type { NoticeSender } from "../reach/ports.ts";
import { confirmationRecord, type Decider, escalationRecord, revocationRecord } from "./decisions.ts";
import { type JudgedBy, judgeAsks, type UnapprovedAsk, type Verdict } from "./judge-asks.ts";
import type { PlainAlways } from "./offers.ts";
import { toPermissionRequest } from "./permission-request.ts";
import type { AnswerEffects, AskRecord, AskStore, PermissionStore, Settlement } from "./ports.ts";
import {
  changedAsk,
  checkSameAnswer,
  isOf,
  isOfPerson,
  isSameAnswer,
  noSuchPermission,
  ownCall,
  pastExpiry,
  replyIdReused,
} from "./refusals.ts";
import {
  type ApprovalContext,
  answerDigest,
  approveAsk,
  callKey,
  eachOpenRequest,
  editAsk,
  listOpenRequests,
  refuseAsk,
  rejectAsk,
  shownBy,
} from "./settlements.ts";
import {
  type AnswerProof,
  type Electorate,
  isStillMet,
  mayApprove,
  meetsNeed,
  proofOf,
  type ReceiptCheck,
  representedBy,
  voterOf,
  withReceipt,
} from "./votes.ts";

type EscalationNotices = NoticeSender["escalationsOf"];

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
  approvals = () => undefined,
  groupsNow = ({ groups }) => groups,
  delegatorsOf = () => [],
  receipts,
  escalationsOf,
  newId,
  now,
}: {
  store: PermissionStore;
  policy: Policy;
  effects: AnswerEffects;
  plainAlways: PlainAlways;
  /** Returns who has to approve what; absent: any approver, alone. */
  approvals?: () => ConfiguredApprovals | undefined;
  receipts?: ReceiptCheck | undefined;
  /** Returns the notices of steps; absent: none. */
  escalationsOf?: EscalationNotices | undefined;
  newId(prefix: "per" | "grt"): string;
  now(): number;
  // Absent: the groups that a person had when they answered, and no delegates.
} & Partial<Electorate>) {
  const context: ApprovalContext = { store, effects, groupsNow, delegatorsOf, receipts, newId, now };
  const approvalOf = (ask: ExpandedAsk, subject: Subject) => policy.approvalOf(approvals(), ask, subject);
  const dependsOnRisks = () => approvals()?.rules.some(({ risks }) => risks.length > 0) === true;
  return {
    /** Judges the asks of a call, see `judgeAsks`. */
    decide: (asks: readonly ExpandedAsk[], subject: Subject, by: JudgedBy): Promise<Verdict> =>
      judgeAsks({ store, policy, approvalOf, dependsOnRisks, groupsNow }, asks, subject, by),
    /** Builds the permission request of an ask; `id` is empty for one that is only shown. */
    request: (
      ask: UnapprovedAsk,
      decisions: readonly PermissionDecision[],
      fields: MessageInitShape<typeof PermissionRequestSchema>,
      subject: Subject,
      id: string,
    ): PermissionRequest =>
      toPermissionRequest(
        ask,
        decisions,
        { ...fields, id, created: now() },
        { subject, plainAlways, needed: approvalOf(ask, subject) },
      ),
    /** Returns who has to approve an ask; undefined: any approver, alone. */
    approvalOf,
    /** Checks if an approved ask is still approved by enough persons, by their groups now. */
    isStillMet: ({ request, settled }: Pick<AskRecord, "request" | "settled">): boolean =>
      isStillMet(request, settled, groupsNow),
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
    /** Settles the asks whose deadline has passed, and takes the steps of others that are due. */
    lookAtDueAsks: (): Promise<void> => lookAtDueAsks(context, escalationsOf),
    /** Finds an ask, open or settled, by its id. */
    find: store.findAsk,
    /** Adds to an open request in whose place an approval of its reader counts. */
    readBy({ identity }: Principal, request: PermissionRequest): PermissionRequest {
      const onBehalfOf = identity ? representedBy(request, identity.person, context) : [];
      return onBehalfOf.length === 0 ? request : { ...request, onBehalfOf };
    },
    /** Lists the open requests that the caller may see, oldest first. */
    list: (filter: Parameters<typeof listOpenRequests>[1]) => listOpenRequests(store, filter),
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

/**
 * Settles an ask with an approver's answer. Of all answers and the deadline exactly one wins: this returns if it is this
 * answer or an equal one, and throws otherwise. Reads again and retries if a record has changed in the meantime.
 */
export async function settleAnswer(
  context: ApprovalContext,
  principal: Principal,
  workspace: string,
  response: PermissionResponse,
): Promise<void> {
  const { store, now } = context;
  if (response.expires !== 0 && response.expires <= now()) throw pastExpiry(response.expires);
  for (;;) {
    const ask = await store.getAsk(response.sessionId, response.permissionId);
    if (!ask) throw noSuchPermission(response);
    if (isOwnCall(ask, principal)) throw ownCall(ask, principal);
    if (ask.settled) return checkSameAnswer(ask.settled, principal, response, answerDigest(response));
    if (response.expectedDigest !== "" && response.expectedDigest !== ask.request.digest) {
      throw changedAsk(ask.request);
    }
    if (isVoteAgain(context, ask, principal, response)) return;
    const proof = await proofOf(principal, ask.request, response, context);
    const settlement = await settlementFor(context, ask, { principal, proof, workspace }, response);
    const outcome = await store.settle(withReceipt(settlement, proof.receipt));
    if (outcome.result === "won") return await proof.used?.();
    if (outcome.result === "retry") continue;
    if (outcome.settled) return checkSameAnswer(outcome.settled, principal, response, answerDigest(response));
    // The deadline has passed, but the sweep has not run yet. The next round reports the outcome.
    await expireAsk(context, ask);
  }
}

/**
 * Checks for the vote of this principal that is stored already, and leaves the request open. Throws for another one of the same id.
 * One that would count now in the place of more persons, or settle the request, is a new vote, unless its person has left.
 */
function isVoteAgain(
  context: ApprovalContext,
  { request }: AskRecord,
  principal: Principal,
  response: PermissionResponse,
): boolean {
  const [need, { groupsNow }] = [currentNeed(request), context];
  const before = request.votes.find((vote) => isOf(vote, principal));
  if (need === undefined || before === undefined) return false;
  const voter = voterOf(before);
  const isFor = ({ id }: Person) => before.onBehalfOf.some((each) => each.id === id && groupsNow(each, before));
  if (isSameAnswer(before, principal, response.replyId, answerDigest(response))) {
    if (!mayApprove(request, voter, context)) return true;
    return representedBy(request, voter, context).every(isFor) && !meetsNeed(need, request.votes, groupsNow);
  }
  if (response.replyId !== "" && response.replyId === before.replyId) throw replyIdReused(response);
  return false;
}

/** Settles an ask whose deadline has passed; its call ends EXPIRED. Does nothing if an answer was first. */
async function expireAsk(context: ApprovalContext, ask: AskRecord): Promise<void> {
  const { result } = await context.store.settle(await refuseAsk(context, ask, PermissionOutcome.EXPIRED));
  if (result !== "retry") return;
  const current = await context.store.getAsk(ask.call.sessionId, ask.request.id);
  if (current && !current.settled) await expireAsk(context, current);
}

/** Checks if the person of the principal, or where that counts its user, made the call of an ask; it then must not answer. */
function isOwnCall(ask: AskRecord, principal: Principal): boolean {
  if (isOfPerson(ask, principal)) return !principal.answersOwn;
  const { user } = principal;
  return user !== undefined && (user === "hidden" || user === ask.part.callerUid);
}

async function settlementFor(
  context: ApprovalContext,
  ask: AskRecord,
  { principal, proof: { method }, workspace }: { principal: Principal; proof: AnswerProof; workspace: string },
  response: PermissionResponse,
): Promise<Settlement> {
  const { reply, replyId, message, input, reason } = response;
  const shown = shownBy(response, ask.request);
  const given = {
    by: principal.id,
    ...principal.identity,
    ...(method && { method }),
    replyId,
    answerDigest: answerDigest(response),
  };
  const answer = { ...given, shown, reason };
  if (reply === PermissionReply.REJECT) return await rejectAsk(context, ask, { ...answer, message });
  return (
    (input && (await editAsk(context, ask, workspace, input, answer))) ??
    (await approveAsk(context, ask, workspace, response, answer))
  );
}

/** The asks to reject together, and the words for the model. */
interface Rejection {
  /** The tree to which they belong; undefined for those of all trees. */
  root: string | undefined;
  /** The agent that asks; empty for every agent. */
  agent: string;
  message: string;
  sees(request: AskRecord["request"]): Promise<boolean>;
}

/** Rejects the open asks that a rejection names. An answer that another approver gives first stands. */
async function rejectAsks(
  context: ApprovalContext,
  principal: Principal,
  { root, agent, message, sees }: Rejection,
): Promise<PermissionSettled[]> {
  const settled: PermissionSettled[] = [];
  const tried = new Set<string>();
  for await (const request of eachOpenRequest(context.store, root)) {
    const { ancestry, sessionId, tool } = request;
    const call = { root: ancestry[0] ?? sessionId, sessionId, callId: tool?.callId ?? "" };
    if ((agent !== "" && request.agent !== agent) || tried.has(callKey(call)) || !(await sees(request))) continue;
    tried.add(callKey(call));
    const end = await rejectCall(context, principal, call, message);
    if (end) settled.push(end);
  }
  return settled;
}

/** Settles a call's open asks as DENIED, because no approver is present. The call ends with it. */
async function denyCall(context: ApprovalContext, call: CallRef): Promise<void> {
  const ask = await firstOpenAsk(context.store, call);
  if (!ask) return;
  const { result } = await context.store.settle(await refuseAsk(context, ask, PermissionOutcome.DENIED));
  if (result === "retry") await denyCall(context, call);
}

/** Settles the asks whose deadline has passed, and takes the steps of others that are due; at most 100 per run. */
async function lookAtDueAsks(context: ApprovalContext, escalationsOf: EscalationNotices | undefined): Promise<void> {
  const due = await context.store.dueAsks(100);
  const time = context.now();
  const handle = (ask: AskRecord) =>
    ask.request.expires <= time ? expireAsk(context, ask) : escalateAsk(context, ask, escalationsOf);
  for (const ask of due) await handle(ask).catch(passDamage);
}

/** Leaves an ask where another record of its call is damaged, which the store has logged: the others go on. */
function passDamage(error: unknown): void {
  if (!(error instanceof RequestError) || error.reason !== ErrorReason.STORE_DAMAGED) throw error;
}

/** Takes the steps of an ask that are due. Where another replica does, or an answer comes first, the next look sees it. */
async function escalateAsk(
  { store, now }: ApprovalContext,
  ask: AskRecord,
  escalationsOf: EscalationNotices | undefined,
): Promise<void> {
  const { request, call, version } = ask;
  const time = now();
  const due = request.escalations.filter(({ at, taken }) => taken === 0 && at <= time);
  // The clock of the store was set back since it listed the ask.
  if (due.length === 0) return;
  const escalations = request.escalations.map((each) => (due.includes(each) ? { ...each, taken: time } : each));
  const notices = escalationsOf?.(request.id, due) ?? [];
  const decisions = [escalationRecord(ask, due)];
  await store.escalate({ call, version, request: { ...request, escalations }, notices, decisions });
}

/** Rejects a call's open asks. Undefined if none is open, or if the principal made the call. */
async function rejectCall(
  context: ApprovalContext,
  principal: Principal,
  call: CallRef,
  message: string,
): Promise<PermissionSettled | undefined> {
  for (;;) {
    const ask = await firstOpenAsk(context.store, call);
    if (!ask || isOwnCall(ask, principal)) return undefined;
    const answer = {
      by: principal.id,
      ...principal.identity,
      message,
      shown: Shown.UNKNOWN,
      answerDigest: answerDigest({ reply: PermissionReply.REJECT, message }),
    };
    const settlement = await rejectAsk(context, ask, answer);
    const { result } = await context.store.settle(settlement);
    if (result === "won") return settlement.settled[0];
    if (result === "lost") await expireAsk(context, ask);
  }
}

async function firstOpenAsk(store: PermissionStore, call: CallRef): Promise<AskRecord | undefined> {
  return (await store.asksOf(call)).find(({ settled }) => !settled);
}
