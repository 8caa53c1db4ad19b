import { PermissionOutcome, type PermissionSettled, Shown } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { PermissionReply } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { CallRef } from "../core/call-ref.ts";
import type { Principal } from "../core/principal.ts";
import { answerDigest } from "./answer-digest.ts";
import { allOpenAsks } from "./open-asks.ts";
import type { AskRecord, PermissionStore } from "./ports.ts";
import { expireAsk, isOwnCall } from "./settle-answer.ts";
import { type ApprovalContext, callKey, refuseAsk } from "./settlements.ts";

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
