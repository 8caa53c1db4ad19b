import { setTimeout as delay } from "node:timers/promises";
import { create, type MessageInitShape } from "@bufbuild/protobuf";
import {
  DecisionKind,
  type DecisionRecord,
  HostTrafficSchema,
  PermissionAction,
} from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { PermissionRequest } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { type DecidedCall, decisionOn } from "../approval/decisions.ts";
import type { Judged } from "../approval/judge-asks.ts";
import type { DurableState, StartedCall } from "../core/durability.ts";
import { isStoreUnavailable } from "../core/request-error.ts";
import type { CallDecision } from "./decide.ts";
import { CallGone } from "./ends.ts";
import { type Engine, isLeaseValid } from "./engine.ts";
import type { CallRecord, Fence, NoteCallStep } from "./ports.ts";
import { ensureRecorded, type Running } from "./running.ts";
import { isTerminal } from "./state.ts";

/** Pause before a step is tried again while the store is unavailable. */
const retryMs = 250;

/** Reads a call and its asks again; throws `CallGone` if it has ended or another replica owns it. */
export async function refreshCall({ store }: Engine, call: Running): Promise<void> {
  const now = await store.getCallWithAsks(call.record.ref);
  if (now) Object.assign(call, now);
  if (!now || isTerminal(now.record.part)) throw new CallGone();
  if (now.record.epoch !== call.fence.epoch || now.record.owner !== call.fence.owner) throw new CallGone();
}

/**
 * Takes a step of a call whose body was entered. While the store is unavailable it takes the step again, until it may no longer rely
 * on its lease or has tried for the time of one; then it throws the last failure.
 */
export async function whileStoreAway<T>(engine: Engine, call: Running, step: () => Promise<T>): Promise<T> {
  for (const until = performance.now() + engine.limits.leaseMs; ; ) {
    try {
      return await step();
    } catch (cause) {
      const isOver =
        !isLeaseValid(engine, call) || performance.now() >= until || call.signal.reason instanceof CallGone;
      if (!isStoreUnavailable(cause) || isOver) throw cause;
      engine.log.warn("a call that ran waits for the store", { error: cause, callId: call.record.ref.callId });
      await delay(retryMs);
    }
  }
}

/** Stores what changes no state: answers of hooks, memos, or decisions made while the body runs. Throws `CallGone` if fenced off. */
export async function noteCall({ store }: Engine, fence: Fence, noted: Omit<NoteCallStep, "fence">): Promise<void> {
  if (!(await store.noteCall({ fence, ...noted }))) throw new CallGone();
}

/**
 * Handles a failed step before the start mark: pauses if the store is unavailable, so that the caller tries again; rethrows
 * any other failure. Nothing has run yet, so every step may be repeated while the lease is valid.
 */
export async function pauseIfUnavailable(engine: Engine, call: Running, cause: unknown): Promise<undefined> {
  if (!isStoreUnavailable(cause)) throw cause;
  if (!isLeaseValid(engine, call)) throw new CallGone();
  engine.log.warn("a call waits for the store", { error: cause, callId: call.record.ref.callId });
  await delay(retryMs, undefined, { signal: call.signal });
  return undefined;
}

/** Returns the state of a durable call, for its body. */
export function durableState(engine: Engine, call: Running): DurableState {
  return {
    isResumed: call.isResumed === true,
    get memo() {
      return startedCall(call.record).memo;
    },
    async store(value) {
      await ensureRecorded(call);
      const memo = JSON.stringify(value);
      await noteCall(engine, call.fence, { memo });
      call.record = { ...call.record, memo };
    },
    async isLeft() {
      if (!(call.signal.reason instanceof CallGone)) return false;
      if (call.isParked) return true;
      const { sessionId, callId } = call.record.ref;
      try {
        const record = await engine.store.getCall(sessionId, callId);
        return record !== undefined && !isTerminal(record.part);
      } catch {
        // Another replica may have the call.
        return true;
      }
    },
  };
}

/** Returns a started call as its tool knows it. */
export function startedCall({ ref: { sessionId, callId }, memo }: Pick<CallRecord, "ref" | "memo">): StartedCall {
  return { sessionId, callId, memo: memo === undefined ? undefined : JSON.parse(memo) };
}

/** Returns a call as audit records name it. */
export function decidedCall({ part, spec }: Pick<CallRecord, "part" | "spec">): DecidedCall {
  return { part, principal: spec.principal };
}

/** Builds the record that lets a call start or go on: by rules and grants, by approvals, or for the reason in `otherwise`. */
export function allowedRecord(
  call: Pick<CallRecord, "part" | "spec">,
  { verdict }: Pick<CallDecision, "verdict">,
  approved: readonly PermissionRequest[] = [],
  otherwise = "a plugin allowed it",
): DecisionRecord {
  return decisionOn(decidedCall(call), DecisionKind.ALLOWED, {
    digest: approved[0]?.digest ?? call.spec.requestDigest,
    decisions: verdict.decisions.map((decision) =>
      decision.action === PermissionAction.ASK && !approved.some(({ permission }) => permission === decision.permission)
        ? { ...decision, reason: `${decision.reason}; ${otherwise}` }
        : decision,
    ),
    permissionIds: approved.map(({ id }) => id),
    // What was approved has them in the record of its requests.
    ...(approved.length === 0 && { facts: verdict.facts?.(), shadow: verdict.shadow?.() }),
  });
}

/** Builds the record of what a call's commands sent to hosts and received. */
export function trafficRecord(
  call: Pick<CallRecord, "part" | "spec">,
  traffic: readonly MessageInitShape<typeof HostTrafficSchema>[],
): DecisionRecord {
  const about = { digest: call.spec.requestDigest, decisions: [] };
  const record = decisionOn(decidedCall(call), DecisionKind.CONNECTED, about);
  return { ...record, traffic: traffic.map((each) => create(HostTrafficSchema, each)) };
}

/** Builds the record of a denied call. */
export function deniedRecord(call: Pick<CallRecord, "part" | "spec">, by: Judged): DecisionRecord {
  const { decisions, facts, shadow } = by;
  const about = { digest: call.spec.requestDigest, decisions, facts: facts?.(), shadow: shadow?.() };
  return decisionOn(decidedCall(call), DecisionKind.DENIED, about);
}
