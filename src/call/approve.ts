import { setTimeout as delay, setImmediate } from "node:timers/promises";
import { create } from "@bufbuild/protobuf";
import { ToolProgressSchema } from "../../gen/opencode/tool/v1/event_pb.ts";
import { type Grant, GrantScope, PermissionAction } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { type PermissionRequest, ToolErrorReason, type ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { Verdict } from "../approval/judge-asks.ts";
import type { CallRef } from "../core/call-ref.ts";
import { isStoreUnavailable } from "../core/request-error.ts";
import type { Tool } from "../tool/tool.ts";
import { answersTo, isOnce, nothingAsked, openMissingAsks, waitUntilSettled } from "./asks.ts";
import { hookEnvironment } from "./call-hooks.ts";
import { allowedRecord, pauseIfUnavailable, refreshCall } from "./call-record.ts";
import { type CallDecision, type DecisionMode, decideCall } from "./decide.ts";
import { CallEnd, CallGone, denied, endCall } from "./ends.ts";
import { type Engine, isLeaseValid, isTaken } from "./engine.ts";
import type { Fence } from "./ports.ts";
import { checkGuards, questionOf } from "./prepare.ts";
import { type Approved, placeFor, type Running, runKeyOf } from "./running.ts";
import { failed, running, runningAt } from "./state.ts";
import { checkStopped } from "./stops.ts";
import { freeSlot, leaveForWorker, needsSlot, releaseCall, reserveWorker, takeSlot } from "./waiting.ts";

/**
 * Steps 4 to 7: plans, judges and asks, and starts over until the plan that is allowed is the one that carries the start mark. A
 * call that asks waits without an owner: the run ends with `CallGone`, and the replica that claims the call takes these steps again.
 */
export async function approveCall(engine: Engine, call: Running, tool: Tool): Promise<Approved> {
  for (;;) {
    call.signal.throwIfAborted();
    const waits = call.record.part.permissionIds.length > 0;
    const step = waits ? waitForAnswers(engine, call) : attemptStart(engine, call, tool);
    const approved = await step.catch((cause: unknown) => pauseIfUnavailable(engine, call, cause));
    if (approved) return approved;
  }
}

/**
 * Leaves the call to wait for its open asks. An open ask is for the approver to decide: a new grant meanwhile must not start the
 * call. A call of an atomic batch waits here, since only this replica knows when it may start.
 */
async function waitForAnswers(engine: Engine, call: Running): Promise<undefined> {
  if (!call.gate) {
    await releaseCall(engine, call.record);
    throw new CallGone();
  }
  await waitUntilSettled(engine, call);
}

/** Plans and judges once. Returns undefined if asks were opened or if what the decision rests on has changed. */
async function attemptStart(
  engine: Engine,
  call: Running,
  tool: Tool,
  // After a "once" grants are read only if it does not cover everything.
  grants: DecisionMode["grants"] = call.asks?.some(isOnce) ? "none" : "adopt",
): Promise<Approved | undefined> {
  const { workspace } = placeFor(call.opened, call.record.part.agent);
  await engine.registry.refresh(workspace);
  checkGuards(engine.registry, workspace);
  const question = questionOf(engine, call.record, call.opened, tool, (cwd) => hookEnvironment(call.hooks, cwd));
  const { decision, view } = await call.observed.step("plan", async () => {
    const decision = await decideCall(engine, question, { grants, call: call.record.ref });
    if (decision.verdict.action === PermissionAction.DENY) throw denied(decision.verdict);
    return { decision, view: await decision.view() };
  });
  if (view.problem) throw view.problem;
  const isAsked = decision.verdict.action === PermissionAction.ASK;
  const answers = isAsked ? await answersTo(engine, call, tool, decision) : nothingAsked;
  if (answers.missing.length > 0) {
    if (grants === "none") return await attemptStart(engine, call, tool, "adopt");
    const isWaiting = await openMissingAsks(engine, call, decision, answers, view, question.subject);
    if (isWaiting && !call.gate) throw new CallGone();
    await refreshCall(engine, call);
    return undefined;
  }
  if (call.gate && !call.gate.isOpen) {
    const changed = tool.changeForm === undefined ? [] : (decision.plan.binds ?? []);
    await call.gate.arrive(
      changed.map(({ absolute }) => absolute),
      call.signal,
    );
    // Rules and files may have changed while the other calls of the batch were not ready.
    return undefined;
  }
  if (!secureSlot(engine, call, tool, decision)) return await leaveForSlot(engine, call);
  if (tool.remote && (decision.plan.waitsForWorker || !reserveWorker(call, tool)))
    return await leaveForWorker(engine, call, tool, decision.plan);
  if (await writeStartMark(engine, call, decision, answers.approved))
    return { ...decision, input: question.input, answers: answers.answers };
  await refreshCall(engine, call);
  return undefined;
}

/** Takes a slot for the body, unless the call has one or needs none. Calls of an atomic batch start together, whatever runs. */
function secureSlot(engine: Engine, call: Running, tool: Tool, { plan }: CallDecision): boolean {
  const isCounted = needsSlot(engine, tool, plan) && !call.gate && call.assignment === undefined;
  if (isCounted === (call.hasSlot ?? false)) return true;
  if (!isCounted) freeSlot(engine);
  else if (!takeSlot(engine, call.record.ref)) return false;
  call.hasSlot = isCounted;
  return true;
}

/** Leaves the call to the replica that has a free slot first. */
async function leaveForSlot(engine: Engine, call: Running): Promise<never> {
  const { limits, store } = engine;
  const { callId } = call.record.ref;
  const title = `Waiting for a free slot: ${limits.replicaRunning} calls run at this replica`;
  await releaseCall(engine, call.record, create(ToolProgressSchema, { callId, title }));
  call.isTurnedAway = true;
  await store.announceUnclaimed([call.record.ref]);
  throw new CallGone();
}

/** Step 7, start mark: durable before the body is entered. Returns false if something the decision rests on has changed. */
export async function writeStartMark(
  engine: Engine,
  call: Running,
  decision: CallDecision,
  approved: readonly PermissionRequest[],
): Promise<boolean> {
  const { limits, store } = engine;
  const { plan, verdict } = decision;
  const counted = await countedFor(engine, call, verdict);
  if (!counted) return false;
  if (!engine.stops.isFresh()) await engine.stops.refresh();
  checkStopped(engine, call.opened, call.record.part);
  call.signal.throwIfAborted();
  // Without the lease another replica can still claim the call; once it is marked none can.
  if (!isLeaseValid(engine, call)) throw new CallGone();
  call.isStarting = true;
  const { attempts } = call.record;
  const part = runningAt(running(call.record.part, plan, store.now()), call.reservation);
  const remote = call.reservation?.mark;
  const step = store.startCall({
    fence: call.fence,
    version: call.record.version,
    ...(verdict.rulesVersion !== undefined && { rulesVersion: verdict.rulesVersion }),
    grantIds: [...new Set(verdict.decisions.flatMap(({ grantId }) => grantId || []))],
    ...(counted.length > 0 && { counted }),
    part,
    remote,
    decisions: [allowedRecord(call.record, decision, approved)],
    ...(call.assignment !== undefined && {
      delegated: { assignment: call.assignment, reportMs: limits.reportMs },
    }),
  });
  const outcome = await step.catch((cause: unknown) => {
    // A delegated call has no lease any more: a later request finds out if its host may run it.
    const isUnconfirmed = isStoreUnavailable(cause) && isConfirming(engine) && call.assignment === undefined;
    throw isUnconfirmed ? startUnconfirmed() : cause;
  });
  if (outcome === "retry") return false;
  if (outcome === "fenced") {
    // A start mark under our fence is ours: the store's answer to it was lost.
    await refreshCall(engine, call);
    if (call.record.attempts === attempts) throw new CallGone();
    return true;
  }
  call.record = { ...call.record, part, attempts: attempts + 1, ...(remote && { remote }) };
  return true;
}

/**
 * Returns the grants with a limit that the start mark counts, after it took a use of each wider one, which lies elsewhere; undefined if
 * one has none left. What was saved for this call does not count it.
 */
async function countedFor(engine: Engine, call: Running, { limited = [] }: Verdict): Promise<Grant[] | undefined> {
  if (limited.length === 0) return [];
  const asks = call.asks ?? (await engine.asksOf(call.record.ref));
  const own = new Set(asks.map(({ request }) => request.id));
  const others = limited.filter(({ permissionId }) => !own.has(permissionId));
  const isInTree = ({ scope }: Grant) => scope === GrantScope.SESSION;
  for (const grant of others) {
    if (!isInTree(grant) && !(await engine.takeGrant(call.record.ref, grant.id))) return undefined;
  }
  return others.filter(isInTree);
}

const unconfirmedText =
  "The store could not confirm in time that enough of its copies have the start of the call, so it was not run. Try it again as a new call.";
/** Pause before the end is written again. */
const retryMs = 250;

/** Returns the end of a call whose start mark was not confirmed: its body is not entered. */
function startUnconfirmed(): CallEnd {
  return new CallEnd(ToolErrorReason.EXECUTOR_LOST, unconfirmedText);
}

/** True if the store acknowledges a step only once enough copies have it. */
function isConfirming({ store }: Pick<Engine, "store">): boolean {
  return store.safety().required > 0;
}

/**
 * Ends a call whose start mark may be stored although the step that writes it failed. Its body is not entered here, and no other
 * replica may enter it. Nothing waits for it but the next request with the same ids. `pending` is the part before the start.
 */
export function endUnentered(engine: Engine, fence: Fence, pending: ToolPart): void {
  const { ref } = fence;
  const key = runKeyOf(ref);
  if (!isConfirming(engine) || engine.unsettled.has(key)) return;
  const work = endWithinLease(engine, fence, pending).finally(() => {
    if (engine.unentered.get(key) === work) engine.unentered.delete(key);
  });
  engine.unentered.set(key, work);
}

/** Waits until a call of these ids that was not entered here has ended, so that its end cannot meet a new call. */
export async function untilUnenteredEnded({ unentered }: Engine, ref: CallRef): Promise<void> {
  await unentered.get(runKeyOf(ref));
}

async function endWithinLease(engine: Engine, fence: Fence, pending: ToolPart): Promise<void> {
  const { limits, log, store } = engine;
  // The failed step counts as a claim until then.
  await setImmediate();
  const end = { reason: ToolErrorReason.EXECUTOR_LOST, error: unconfirmedText };
  for (const until = performance.now() + limits.leaseMs; performance.now() < until; ) {
    // Another request with the same ids has taken it.
    if (isTaken(engine, fence.ref)) return;
    try {
      await endCall(engine, { ref: fence.ref, guard: { fence }, part: failed(pending, end, store.now()) });
      return;
    } catch (error) {
      if (!isStoreUnavailable(error)) return log.error("a call that was not run could not be ended", { error });
      await delay(retryMs);
    }
  }
}
