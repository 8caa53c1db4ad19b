import { PermissionOutcome, type PermissionSettled, Shown } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { PermissionReply } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { CallRef } from "../core/call-ref.ts";
import type { Principal } from "../core/principal.ts";
import { answerDigest } from "./answer-digest.ts";
import { allOpenAsks } from "./open-asks.ts";
import type { AskRecord, PermissionStore } from "./ports.ts";
import { expireAsk, isOwnCall } from "./settle-answer.ts";
import { type ApprovalContext, callKey, refuseAsk } from "./settlements.ts";

/** Rejects every open ask of a session and its descendants. An answer that another approver gives first stands. */
export async function rejectTree(
  context: ApprovalContext,
  principal: Principal,
  tree: { root: string; sessionId: string; message: string },
): Promise<PermissionSettled[]> {
  const settled: PermissionSettled[] = [];
  const tried = new Set<string>();
  for (const { request, call } of await allOpenAsks(context.store, tree.root)) {
    if (!request.ancestry.includes(tree.sessionId) || tried.has(callKey(call))) continue;
    tried.add(callKey(call));
    const end = await rejectCall(context, principal, call, tree.message);
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
