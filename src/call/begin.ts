import { setTimeout as delay } from "node:timers/promises";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import type { ToolErrorReason, ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { BeginCallRequest } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import type { AskRecord } from "../approval/ports.ts";
import type { CallRef } from "../core/call-ref.ts";
import type { Principal } from "../core/principal.ts";
import { lostCall, RequestError } from "../core/request-error.ts";
import type { TraceContext } from "../tool/tool.ts";
import { checkAttach } from "./accept.ts";
import { type Assignment, attemptDelegated, newAssignment } from "./attempt-delegated.ts";
import { endFailedOver } from "./claims.ts";
import { type HostedSession, openHostedSession } from "./delegated-session.ts";
import type { Engine } from "./engine.ts";
import { enterDelegated } from "./enter-delegated.ts";
import { createBell } from "./log.ts";
import type { CallRecord } from "./ports.ts";
import { collectableUntil, expireUncollected } from "./recover-delegated.ts";
import { beforeDrain, checkServing, whileClaiming } from "./runs.ts";
import type { OpenSession } from "./sessions.ts";
import { isTerminal } from "./state.ts";

/** CallDecision on a delegated call, or the call that still waits for one. */
export type BeginOutcome =
  | { case: "begun"; assignment: string; part: ToolPart }
  | { case: "refused"; reason: ToolErrorReason; message: string }
  | { case: "waiting"; ref: CallRef; part: ToolPart };

/** A call that this request tries to begin. */
interface Begin {
  readonly ref: CallRef;
  readonly opened: OpenSession;
  /** Given out only if this request writes the start mark. */
  readonly assignment: Assignment;
  /** Aborted when the requester leaves: nothing starts for it then. */
  readonly signal: AbortSignal;
}

const defaultWaitMs = 30_000;
/** Interval after which a wait reads the call even without news. */
const quietMs = 60_000;
/** Pause while another request plans the call. */
const busyMs = 250;

/** Accepts a call that its host runs, or attaches to it, and waits for the decision. */
export async function beginCall(
  engine: Engine,
  principal: Principal,
  request: BeginCallRequest,
  signal: AbortSignal,
  trace?: TraceContext,
): Promise<BeginOutcome & { root: string }> {
  checkServing(engine);
  await engine.sessions.expectStore(request.expectedStoreId);
  engine.lines.checkBudget(principal.id);
  const hosted = await openHostedSession(engine, principal, request);
  const root = hosted.opened.session.rootSessionId;
  await engine.sessions.expectStore(request.expectedStoreId, root);
  return { ...(await beginHosted(engine, principal, hosted, request, signal, trace)), root };
}

/** Like `beginCall`, in a session that was opened. */
export async function beginHosted(
  engine: Engine,
  principal: Principal,
  hosted: HostedSession,
  request: BeginCallRequest,
  signal: AbortSignal,
  trace?: TraceContext,
): Promise<BeginOutcome> {
  const assignment = newAssignment();
  const entered = await beforeDrain(
    engine,
    enterDelegated(engine, principal, request, hosted, { assignment, signal, trace }),
  );
  const begin = { ref: entered.record.ref, opened: entered.opened, assignment, signal };
  await entered.attempt;
  return decisionOf(entered.record, assignment) ?? (await decideWithin(engine, begin, request.waitMs ?? defaultWaitMs));
}

/** Waits until the call is decided or the time is over; tries to start it whenever it waits for no answer. */
async function decideWithin(engine: Engine, begin: Begin, ms: number): Promise<BeginOutcome> {
  const { ref, signal } = begin;
  const until = performance.now() + ms;
  const bell = createBell();
  const off = engine.store.onNews(ref.sessionId, bell.ring);
  try {
    for (;;) {
      signal.throwIfAborted();
      const found = await engine.store.getCallWithAsks(ref);
      if (!found) throw lostCall(ref, engine.store.storeIdOf(ref.root));
      const { record, asks } = found;
      const decided = decisionOf(record, begin.assignment);
      if (decided) return decided;
      const waits = record.part.permissionIds.length > 0;
      if (!waits && record.owner === "" && (await takeUp(engine, begin, record, asks))) continue;
      const left = until - performance.now();
      if (left <= 0) return { case: "waiting", ref, part: record.part };
      if (waits) await bell.wait(Math.min(left, quietMs), signal);
      else await delay(Math.min(left, busyMs), undefined, { signal });
    }
  } finally {
    off();
  }
}

/** Returns the outcome of a call that has ended or begun; throws ALREADY_BEGUN if its assignment was given to another request. */
function decisionOf({ part, ...record }: CallRecord, assignment: Assignment): BeginOutcome | undefined {
  if (part.state.case === "pending") return undefined;
  checkAttach({ ...record, part }, record.spec.requestDigest);
  if (record.assignment === assignment.hash && !isTerminal(part))
    return { case: "begun", assignment: assignment.secret, part };
  if (part.state.case === "error" && record.assignment === undefined) {
    const { reason, error } = part.state.value;
    return { case: "refused", reason, message: error };
  }
  const { sessionId, callId } = record.ref;
  throw new RequestError(
    ErrorReason.ALREADY_BEGUN,
    `call ${callId} of session ${sessionId} began before, for another request: do not run it again. A new use of the tool needs a new foreign_call_id`,
    { call_id: callId },
  );
}

/** Claims a call that waits for no answer and tries to start it. Returns true if the call has changed. */
async function takeUp(
  engine: Engine,
  { ref, opened, assignment, signal }: Begin,
  record: CallRecord,
  asks: readonly AskRecord[],
): Promise<boolean> {
  const { limits, replicaId, store } = engine;
  if (record.mayHaveRun) return await endFailedOver(engine, record);
  if (collectableUntil(record, asks) <= store.now()) return await expireUncollected(engine, record);
  const sent = performance.now();
  const attempt = await beforeDrain(
    engine,
    (async () => {
      checkServing(engine);
      const claimed = await whileClaiming(engine, ref, () => store.claimCall(ref, replicaId, limits.leaseMs));
      return claimed && { done: attemptDelegated(engine, claimed, opened, sent, { assignment, signal }) };
    })(),
  );
  await attempt?.done;
  return attempt !== undefined;
}
