import { setTimeout as delay } from "node:timers/promises";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import { PermissionAction, type PermissionSettled } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { PermissionReply, type PermissionResponse } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { AnswerSteps } from "../approval/permissions.ts";
import type { AskRecord, Settlement, SettleResult } from "../approval/ports.ts";
import { workspaceRoot } from "../core/paths.ts";
import type { Principal } from "../core/principal.ts";
import { isStoreUnavailable, RequestError } from "../core/request-error.ts";
import { within } from "../core/within.ts";
import { endUnentered } from "./approve.ts";
import { answersTo, nothingAsked } from "./asks.ts";
import { allowedRecord } from "./call-record.ts";
import { startsWithOthers } from "./children.ts";
import { claimSettled } from "./claims.ts";
import { decideCall } from "./decide.ts";
import { isTooOld } from "./ends.ts";
import { beforeDrain, checkServing, type Engine, isLeaseValid, whileClaiming } from "./engine.ts";
import { launchCall } from "./launch.ts";
import type { CallRecord, CallWithAsks } from "./ports.ts";
import { questionOf, resolveTool } from "./prepare.ts";
import { rebindBeforeApproval } from "./rebind.ts";
import { runKeyOf, type Startable } from "./running.ts";
import type { OpenSession } from "./sessions.ts";
import { running } from "./state.ts";
import { mayStart, stopOf, stopText } from "./stops.ts";
import { freeSlot, hasFreeSlot, needsSlot, takeSlot } from "./waiting.ts";

/** Time that a call may be judged before its last ask is settled. */
const maxJudgingMs = 50;
/** Pause before a call is read again while the store is unavailable. */
const retryMs = 250;

/**
 * Settles an ask with an approver's answer. A call that waits for nothing else is judged first, as if the answer stood; if that
 * allows it, the step that settles the ask claims and starts the call. Otherwise a replica claims the call after the step.
 */
export async function answerAsk(
  engine: Engine,
  principal: Principal,
  workspace: string,
  response: PermissionResponse,
): Promise<void> {
  // An answer during a drain stands, and another replica runs the call. With former rules the call was judged by others.
  if (!engine.agreesOnPolicy()) checkServing(engine);
  if (response.reply !== PermissionReply.REJECT) await checkNotStopped(engine, response);
  const answer = engine.permissions.reply(principal, workspace, response, answerSteps(engine));
  await beforeDrain(engine, answer);
}

/** Refuses to approve what was stopped. */
async function checkNotStopped(engine: Engine, { permissionId, sessionId }: PermissionResponse): Promise<void> {
  if (engine.stops.current().length === 0) return;
  const [ask, known] = await Promise.all([engine.getAsk(sessionId, permissionId), engine.sessions.find(sessionId)]);
  const stop = ask && known && stopOf(engine, known, ask.request.agent);
  if (!stop) return;
  throw new RequestError(ErrorReason.STOPPED, `${stopText(stop)}; resume it before you approve`, { by: stop.by });
}

/** Steps that read an ask with its call and all asks of that, once per attempt. */
function answerSteps(engine: Engine): AnswerSteps {
  let read: CallWithAsks | undefined;
  return {
    async getAsk(sessionId, id) {
      read = await engine.store.getCallOfAsk(sessionId, id);
      return read?.asks.find(({ request }) => request.id === id);
    },
    asksOf: async (call) =>
      read && runKeyOf(read.record.ref) === runKeyOf(call) ? [...read.asks] : await engine.asksOf(call),
    settle: (settlement) => settleAndStart(engine, settlement, read),
  };
}

/** A call that may start with the settlement of its last ask. */
interface StartingCall {
  readonly record: CallRecord;
  readonly opened: OpenSession;
  readonly ready: Startable;
  /** All asks of the call, as if the answer stood. */
  readonly asks: readonly AskRecord[];
}

async function settleAndStart(
  engine: Engine,
  settlement: Settlement,
  read: CallWithAsks | undefined,
): Promise<SettleResult> {
  if (read && isApproval(settlement, read)) await rebindBeforeApproval(engine, read);
  const starting = read && (await judgeBefore(engine, settlement, read));
  const isCounted = starting !== undefined && needsSlot(engine, starting.ready.tool, starting.ready.plan);
  const hasSlot = isCounted && takeSlot(engine, starting.record.ref);
  const isStartable = starting !== undefined && mayStart(engine, starting.opened, starting.record.part.agent);
  const maySettle = isStartable && (hasSlot || !isCounted);
  const result = await (maySettle ? settleWithStart(engine, settlement, starting, hasSlot) : engine.settle(settlement));
  if (result.result === "won") claimSettled(engine, result.unclaimed ?? []);
  return result;
}

async function settleWithStart(
  engine: Engine,
  settlement: Settlement,
  { record, opened, ready, asks }: StartingCall,
  hasSlot: boolean,
): Promise<SettleResult> {
  const { limits, replicaId, settle } = engine;
  const start = { owner: replicaId, leaseMs: limits.leaseMs, part: ready.start };
  const step = {
    ...settlement,
    calls: settlement.calls.map((call) => (isSame(call, record) ? { ...call, start } : call)),
    decisions: [...(settlement.decisions ?? []), ready.decision],
  };
  const started: CallRecord = {
    ...record,
    ...{ part: ready.start, owner: replicaId, epoch: record.epoch + 1, version: record.version + 1, attempts: 1 },
  };
  const sent = performance.now();
  let isLaunched = false;
  try {
    const result = await whileClaiming(engine, record.ref, () =>
      settle(step).catch((cause: unknown) => resultOfLostStep(engine, started, sent, cause)),
    );
    isLaunched = result.result === "won";
    if (isLaunched) launchCall(engine, started, opened, sent, { ready, asks, hasSlot });
    return result;
  } catch (cause) {
    const { ref, owner, epoch } = started;
    if (isStoreUnavailable(cause)) endUnentered(engine, { ref, owner, epoch }, record.part);
    throw cause;
  } finally {
    if (hasSlot && !isLaunched) freeSlot(engine);
  }
}

/** Finds out if a step was taken whose answer was lost; throws its failure if it was not, or if that is not known in time. */
async function resultOfLostStep(
  engine: Engine,
  { ref, owner, epoch }: CallRecord,
  leaseConfirmed: number,
  cause: unknown,
): Promise<SettleResult> {
  while (isLeaseValid(engine, { leaseConfirmed })) {
    const found = await engine.store.getCall(ref.sessionId, ref.callId).catch(() => "unavailable" as const);
    if (found !== "unavailable") {
      if (found?.owner === owner && found.epoch === epoch && found.part.state.case === "running")
        return { result: "won" };
      break;
    }
    await delay(retryMs);
  }
  throw cause;
}

/** Judges the call of an answer as if the answer stood. Returns undefined if the call does not start in the step of the answer. */
async function judgeBefore(
  engine: Engine,
  settlement: Settlement,
  { record, asks }: CallWithAsks,
): Promise<StartingCall | undefined> {
  const answered = asks.map((ask) => withSettlement(ask, settlement.settled));
  if (
    !isApproval(settlement, { record }) ||
    answered.some(({ settled }) => !settled) ||
    !mayStartAtOnce(engine, record, answered)
  )
    return undefined;
  const digest = engine.policyDigest();
  const judging = judgeAnswered(engine, record, answered).catch(() => undefined);
  const judged = await within(maxJudgingMs, judging, () => undefined);
  return judged && mayStartAtOnce(engine, record, answered) && engine.policyDigest() === digest
    ? { record, asks: answered, ...judged }
    : undefined;
}

/** Checks for an answer that ends no call. */
const isApproval = ({ calls }: Settlement, { record }: Pick<CallWithAsks, "record">) =>
  calls.some((call) => isSame(call, record) && call.part === undefined);

/**
 * Checks if this replica may start a call with the settlement of its last ask. A call with answers of hooks is judged by the run
 * that claims it, since only a run may run hooks.
 */
function mayStartAtOnce(engine: Engine, record: CallRecord, asks: readonly AskRecord[]): boolean {
  const { hooks, isDraining } = engine;
  const { part, spec, owner, attempts, hooked } = record;
  if (isDraining || !engine.agreesOnPolicy() || isTooOld(engine, record, asks) || record.mayHaveRun) return false;
  if (spec.delegated || startsWithOthers(part) || part.state.case !== "pending" || owner !== "" || attempts > 0)
    return false;
  return hooked === undefined && !hooks.has("tool.execute.before", "shell.env", "permission.ask");
}

/** Takes the steps up to the start mark without writing anything. Grants are not consulted: the answers have to cover the plan. */
async function judgeAnswered(
  engine: Engine,
  record: CallRecord,
  asks: readonly AskRecord[],
): Promise<Pick<StartingCall, "opened" | "ready"> | undefined> {
  const opened = await engine.sessions.load(record.ref.sessionId);
  if (!opened) return undefined;
  await engine.registry.refresh(workspaceRoot(opened.workspace.name));
  const tool = resolveTool(engine, record, opened);
  // Its run reserves a worker first.
  if (tool.remote) return undefined;
  if (needsSlot(engine, tool) && !hasFreeSlot(engine)) return undefined;
  const question = questionOf(engine, record, opened, tool);
  const decision = await decideCall(engine, question, { grants: "none" });
  const { plan, verdict } = decision;
  if (verdict.action === PermissionAction.DENY || (await decision.view()).problem) return undefined;
  const isAsked = verdict.action === PermissionAction.ASK;
  const answers = isAsked ? await answersTo(engine, { record, opened, asks }, tool, decision) : nothingAsked;
  if (answers.missing.length > 0) return undefined;
  const start = running(record.part, plan, engine.store.now());
  const allowed = allowedRecord(record, decision, answers.approved);
  return { opened, ready: { ...question, ...decision, answers: answers.answers, start, decision: allowed } };
}

function withSettlement(ask: AskRecord, settled: readonly PermissionSettled[]): AskRecord {
  const found = ask.settled ?? settled.find(({ permissionId }) => permissionId === ask.request.id);
  return found ? { ...ask, settled: found } : ask;
}

const isSame = ({ ref, version }: Pick<CallRecord, "ref" | "version">, record: CallRecord) =>
  version === record.version && runKeyOf(ref) === runKeyOf(record.ref);
