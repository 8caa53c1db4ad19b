import { PermissionOutcome, type PermissionSettled, Shown } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { PermissionReply, type PermissionResponse } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { CallRef } from "../core/call-ref.ts";
import type { Principal } from "../core/principal.ts";
import type { AskRecord, PermissionStore, Settlement } from "./ports.ts";
import { changedAsk, checkSameAnswer, isOfPerson, noSuchPermission, ownCall, pastExpiry } from "./refusals.ts";
import {
  type ApprovalContext,
  allOpenAsks,
  answerDigest,
  approveAsk,
  callKey,
  editAsk,
  refuseAsk,
  shownBy,
} from "./settlements.ts";

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
    const outcome = await store.settle(await settlementFor(context, ask, principal, workspace, response));
    if (outcome.result === "won") return;
    if (outcome.result === "retry") continue;
    if (outcome.settled) return checkSameAnswer(outcome.settled, principal, response, answerDigest(response));
    // The deadline has passed, but the sweep has not run yet. The next round reports the outcome.
    await expireAsk(context, ask);
  }
}

/** Settles an ask whose deadline has passed; its call ends EXPIRED. Does nothing if an answer was first. */
export async function expireAsk(context: ApprovalContext, ask: AskRecord): Promise<void> {
  const { store } = context;
  const { result } = await store.settle(await refuseAsk(context, ask, PermissionOutcome.EXPIRED));
  if (result !== "retry") return;
  const current = await store.getAsk(ask.call.sessionId, ask.request.id);
  if (current && !current.settled) await expireAsk(context, current);
}

/** Checks if the person of the principal, or where that counts its user, made the call of an ask; it then must not answer. */
export function isOwnCall(ask: AskRecord, principal: Principal): boolean {
  if (isOfPerson(ask, principal)) return !principal.answersOwn;
  const { user } = principal;
  return user !== undefined && (user === "hidden" || user === ask.part.callerUid);
}

async function settlementFor(
  context: ApprovalContext,
  ask: AskRecord,
  principal: Principal,
  workspace: string,
  response: PermissionResponse,
): Promise<Settlement> {
  const { reply, replyId, message, input } = response;
  const shown = shownBy(response, ask.request);
  const answer = { by: principal.id, ...principal.identity, replyId, answerDigest: answerDigest(response), shown };
  if (reply === PermissionReply.REJECT)
    return await refuseAsk(context, ask, PermissionOutcome.REJECT, { ...answer, message });
  return (
    (input && (await editAsk(context, ask, workspace, input, answer))) ??
    (await approveAsk(context, ask, workspace, response, answer))
  );
}

/** The asks to reject together, and the words for the model. */
export interface Rejection {
  /** The tree to which they belong; undefined for those of all trees. */
  root: string | undefined;
  /** The agent that asks; empty for every agent. */
  agent: string;
  message: string;
  sees(request: AskRecord["request"]): Promise<boolean>;
}

/** Rejects the open asks that a rejection names. An answer that another approver gives first stands. */
export async function rejectAsks(
  context: ApprovalContext,
  principal: Principal,
  { root, agent, message, sees }: Rejection,
): Promise<PermissionSettled[]> {
  const settled: PermissionSettled[] = [];
  const tried = new Set<string>();
  for (const { request, call } of await allOpenAsks(context.store, root)) {
    if ((agent !== "" && request.agent !== agent) || tried.has(callKey(call)) || !(await sees(request))) continue;
    tried.add(callKey(call));
    const end = await rejectCall(context, principal, call, message);
    if (end) settled.push(end);
  }
  return settled;
}

/** Settles a call's open asks as DENIED, because no approver is present. The call ends with it. */
export async function denyCall(context: ApprovalContext, call: CallRef): Promise<void> {
  const ask = await firstOpenAsk(context.store, call);
  if (!ask) return;
  const { result } = await context.store.settle(await refuseAsk(context, ask, PermissionOutcome.DENIED));
  if (result === "retry") await denyCall(context, call);
}

/** Settles the asks whose deadline has passed, at most 100 per run. */
export async function expireAsks(context: ApprovalContext): Promise<void> {
  for (const ask of await context.store.expiredAsks(100)) await expireAsk(context, ask);
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
    const settlement = await refuseAsk(context, ask, PermissionOutcome.REJECT, answer);
    const { result } = await context.store.settle(settlement);
    if (result === "won") return settlement.settled[0];
    if (result === "lost") await expireAsk(context, ask);
  }
}

async function firstOpenAsk(store: PermissionStore, call: CallRef): Promise<AskRecord | undefined> {
  return (await store.asksOf(call)).find(({ settled }) => !settled);
}
