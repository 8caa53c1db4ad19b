import { PermissionOutcome, type PermissionSettled } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { PermissionReply, type PermissionResponse } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { CallRef } from "../core/call-ref.ts";
import type { Principal } from "../core/principal.ts";
import { changedAsk, noSuchPermission, ownCall, pastExpiry, settledBefore } from "./answer-refusals.ts";
import type { AskRecord, PermissionStore, Settlement } from "./ports.ts";
import { allOpen, nameOf, type Settlements } from "./settlements.ts";

/** Settles asks: by people, by their deadline, or because nobody is there. */
export type AnswerAsks = ReturnType<typeof createAnswers>;

/** Makes what settles asks: it reads, works out what an answer comes to, and tries again if that has changed meanwhile. */
export function createAnswers({
  store,
  settlements,
  now,
}: {
  store: PermissionStore;
  settlements: Settlements;
  now(): number;
}) {
  /** Settles an ask with a person's answer. Of all answers and the deadline exactly one wins; this returns if it is this one. */
  async function reply(principal: Principal, workspace: string, response: PermissionResponse): Promise<void> {
    if (response.expires !== 0 && response.expires <= now()) throw pastExpiry(response.expires);
    for (;;) {
      const ask = await store.getAsk(response.sessionId, response.permissionId);
      if (!ask) throw noSuchPermission(response);
      if (isOwn(ask, principal)) throw ownCall(response, principal);
      if (ask.settled) return settledBefore(ask.settled, principal, response, settlements.digestOf(response));
      if (response.expectedDigest !== "" && response.expectedDigest !== ask.request.digest) {
        throw changedAsk(ask.request);
      }
      const outcome = await store.settle(await settlementOf(ask, principal, workspace, response));
      if (outcome.result === "won") return;
      if (outcome.result === "retry") continue;
      if (outcome.settled) return settledBefore(outcome.settled, principal, response, settlements.digestOf(response));
      // The deadline passed before the reaper came by; the next round tells what became of it.
      await expire(ask);
    }
  }

  async function settlementOf(
    ask: AskRecord,
    principal: Principal,
    workspace: string,
    response: PermissionResponse,
  ): Promise<Settlement> {
    const { reply, replyId, message, input } = response;
    const answer = { by: principal.id, replyId, answerDigest: settlements.digestOf(response) };
    if (reply === PermissionReply.REJECT)
      return await settlements.refusal(ask, PermissionOutcome.REJECT, { ...answer, message });
    return (
      (input && (await settlements.edit(ask, workspace, input, answer))) ??
      (await settlements.approval(ask, workspace, response, answer))
    );
  }

  /** Rejects all that is open in a session and its descendants; what somebody else settles meanwhile stands. */
  async function rejectAll(
    principal: Principal,
    tree: { root: string; sessionId: string; message: string },
  ): Promise<PermissionSettled[]> {
    const settled: PermissionSettled[] = [];
    const tried = new Set<string>();
    for (const { request, call } of await allOpen(store, tree.root)) {
      if (!request.ancestry.includes(tree.sessionId) || tried.has(nameOf(call))) continue;
      tried.add(nameOf(call));
      const end = await rejectCall(principal, call, tree.message);
      if (end) settled.push(end);
    }
    return settled;
  }

  async function rejectCall(
    principal: Principal,
    call: CallRef,
    message: string,
  ): Promise<PermissionSettled | undefined> {
    for (;;) {
      const ask = (await store.asksOf(call)).find(({ settled }) => !settled);
      if (!ask || isOwn(ask, principal)) return undefined;
      const answer = {
        by: principal.id,
        message,
        answerDigest: settlements.digestOf({ reply: PermissionReply.REJECT, message }),
      };
      const settlement = await settlements.refusal(ask, PermissionOutcome.REJECT, answer);
      const { result } = await store.settle(settlement);
      if (result === "won") return settlement.settled[0];
      if (result === "lost") await expire(ask);
    }
  }

  /** Settles an ask whose deadline has passed; the call ends EXPIRED. Does nothing if somebody answered first. */
  async function expire(ask: AskRecord): Promise<void> {
    const { result } = await store.settle(await settlements.refusal(ask, PermissionOutcome.EXPIRED));
    if (result !== "retry") return;
    const again = await store.getAsk(ask.call.sessionId, ask.request.id);
    if (again && !again.settled) await expire(again);
  }

  /** Settles a call's open asks DENIED: nobody is there to be asked. The call ends with it. */
  async function deny(call: CallRef): Promise<void> {
    const ask = (await store.asksOf(call)).find(({ settled }) => !settled);
    if (!ask) return;
    const { result } = await store.settle(await settlements.refusal(ask, PermissionOutcome.DENIED));
    if (result === "retry") await deny(call);
  }

  return {
    reply,
    rejectAll,
    deny,
    /** Settles every ask whose deadline has passed. */
    async expireAsks(): Promise<void> {
      for (const ask of await store.expiredAsks(100)) await expire(ask);
    },
  };
}

/** Who made a call never answers for it. */
function isOwn(ask: AskRecord, principal: Principal): boolean {
  return ask.principal === principal.id && !principal.answersOwn;
}
