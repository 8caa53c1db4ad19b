import { create } from "@bufbuild/protobuf";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import {
  type CreateSessionRequest,
  CreateSessionRequestSchema,
} from "../../gen/opencode/tool/v1/session_service_pb.ts";
import { CallToolRequestSchema, type ExecuteToolRequest } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import type { CallRef } from "../core/call-ref.ts";
import { newId } from "../core/ids.ts";
import { canonicalJson } from "../core/json.ts";
import { workspaceRoot } from "../core/paths.ts";
import type { Principal } from "../core/principal.ts";
import { isStoreUnavailable, RequestError } from "../core/request-error.ts";
import type { ChildCall, ChildResult, TraceContext } from "../tool/tool.ts";
import { endUnentered, untilUnenteredEnded } from "./approve.ts";
import { cancelCall } from "./cancel.ts";
import { checkLevels, checkMetadata, checkSize } from "./check-size.ts";
import {
  type ChildRequest,
  childCallId,
  createStartGate,
  type Parent,
  runChildren,
  type StartGate,
} from "./children.ts";
import { digestOfRequest } from "./digests.ts";
import { CallGone, maxLifeMs } from "./ends.ts";
import { beforeDrain, checkServing, type Engine, servingRefusal, whileClaiming } from "./engine.ts";
import { waitForEnd } from "./follow.ts";
import {
  createParking,
  launchAtGate,
  leaveAtOpenGate,
  leaveToRecovery,
  readFormerGate,
  releaseAtGate,
} from "./gated-calls.ts";
import { launchCall } from "./launch.ts";
import type { CallRecord, CallSpec, OpenCallStep, OpenedCall } from "./ports.ts";
import { prepareStart } from "./prepare.ts";
import { countUnrecorded, mayRecordOnce, recordOnce } from "./record-once.ts";
import { type Ready, runKeyOf } from "./running.ts";
import type { OpenSession } from "./sessions.ts";
import { pendingPart, runningAt } from "./state.ts";
import { mayStart } from "./stops.ts";
import { freeSlot, needsSlot, takeSlot, waitForWorker, waitOf } from "./waiting.ts";

/** Fields that CallTool and ExecuteTool have in common. */
export type CallRequest = Omit<ExecuteToolRequest, "$typeName" | "$unknown" | "onDisconnect" | "afterSeq">;

/** An accepted call, or the one that a request attached to. */
export interface Accepted {
  record: CallRecord;
  opened: OpenSession;
}

/** The caller as stored with a call, and the user of the operating system from which it called, where that counts. */
export type Caller = Pick<CallSpec, "principal" | "person"> & {
  callerUid: number | undefined;
  behind: Principal["behind"];
};

/** Returns the caller of a principal's request. */
export function callerOfRequest({ id: principal, lineage: [person], behind, user }: Principal): Caller {
  const callerUid = typeof user === "number" ? user : undefined;
  return { principal, person: person === principal ? undefined : person, callerUid, behind };
}

/** Accepts a call, or attaches to the call of that id; during a drain, or with former rules, it only attaches. */
export async function acceptCall(
  engine: Engine,
  principal: Principal,
  request: CallRequest,
  trace?: TraceContext,
): Promise<Accepted> {
  const refusal = servingRefusal(engine);
  if (refusal) return await attachOnly(engine, principal, request, refusal);
  return await beforeDrain(engine, openAndEnter(engine, principal, request, trace));
}

/** Attaches to an existing call, so that its client gets the end of what still runs; throws the refusal for a new one. */
async function attachOnly(
  engine: Engine,
  principal: Principal,
  request: CallRequest,
  refusal: RequestError,
): Promise<Accepted> {
  const { sessions, store } = engine;
  const { sessionId, callId, tool, input = {} } = request;
  if (sessionId === "" || callId === "") throw refusal;
  const opened = await sessions.openExpected(principal, sessionId, request.expectedStoreId);
  const record = await store.getCall(sessionId, callId);
  if (!record) throw refusal;
  checkAttach(record, digestOfRequest(tool, canonicalJson(input)));
  return { record, opened };
}

async function openAndEnter(
  engine: Engine,
  principal: Principal,
  request: CallRequest,
  trace?: TraceContext,
): Promise<Accepted> {
  const { sessions } = engine;
  engine.lines.checkBudget(principal.id);
  checkMetadata(request.metadata);
  await sessions.expectStore(request.expectedStoreId);
  const sessionId = request.sessionId || (await newSession(engine, principal));
  const opened = await sessions.openExpected(principal, sessionId, request.expectedStoreId);
  const agent = sessions.agentFor(principal, request.agent, opened.session);
  return await enterCall(engine, { ...request, agent }, opened, callerOfRequest(principal), { trace });
}

async function newSession({ sessions }: Engine, principal: Principal): Promise<string> {
  const request: CreateSessionRequest = create(CreateSessionRequestSchema);
  return (await sessions.create(principal, request)).id;
}

/** Options of a call that a tool makes, and the caller's position in a trace. */
interface EntryOptions {
  gate?: StartGate | undefined;
  trace?: TraceContext | undefined;
  background?: boolean;
  parentCallId?: string;
}

/** Accepts a call in an open session, for an agent that the principal may use, and launches it unless it exists. */
async function enterCall(
  engine: Engine,
  request: CallRequest,
  opened: OpenSession,
  caller: Caller,
  { gate, trace, background = false, parentCallId = "" }: EntryOptions = {},
): Promise<Accepted> {
  const { callId } = request;
  if (callId)
    await untilUnenteredEnded(engine, { root: opened.session.rootSessionId, sessionId: opened.session.id, callId });
  // A saved file of tools or of a plugin is what this call meets.
  await engine.registry.refresh(workspaceRoot(opened.workspace.name));
  const call = {
    ...describeCall(engine, request, opened, caller, { trace, background, parentCallId }),
    // A failover while this is prepared may lose the call to which the request would attach.
    checkStore: () => engine.sessions.checkStore(request.expectedStoreId, opened.session.rootSessionId),
  };
  let ready = gate ? undefined : await prepareStart(engine, call, opened);
  call.checkStore();
  let entered: OpenedCall | undefined;
  if (ready && mayRecordOnce(engine, call, ready) && mayStart(engine, opened, call.part.agent)) {
    entered = await recordOnce(engine, opened, ready, openStep(engine, call, ready));
    if (!entered) ready = await prepareStart(engine, call, opened);
  }
  entered ??= await openAndLaunch(engine, call, opened, ready, gate);
  if (!entered.created) checkAttach(entered.record, call.spec.requestDigest);
  return { record: entered.record, opened };
}

/** A call as its request describes it. */
type CallToOpen = Pick<OpenCallStep, "ref" | "part" | "spec" | "checkStore">;

/** Accepts a call, and starts it in the same step if it is ready; launches it unless it exists. */
async function openAndLaunch(
  engine: Engine,
  call: CallToOpen,
  opened: OpenSession,
  ready: Ready | undefined,
  gate: StartGate | undefined,
): Promise<OpenedCall> {
  const isCounted = ready !== undefined && needsSlot(engine, ready.tool, ready.plan);
  const hasSlot = isCounted && takeSlot(engine, call.ref);
  const reservation = ready?.plan.waitsForWorker ? undefined : ready?.tool.remote?.reserve(call.ref);
  // Without a slot, or capacity of a worker, the call is only accepted, and waits for it.
  const isStartable = (hasSlot || !isCounted) && (!ready?.tool.remote || reservation);
  const startable =
    isStartable && ready && mayStart(engine, opened, call.part.agent)
      ? { ...ready, start: runningAt(ready.start, reservation) }
      : undefined;
  const wait = ready?.tool.remote && !reservation ? waitOf(engine, call, ready.tool) : undefined;
  const sent = performance.now();
  const waiting = wait && { ...wait, maxRepeats: ready?.maxRepeats };
  const step = { ...openStep(engine, call, startable), ...waiting, remote: reservation?.mark };
  let isLaunched = false;
  try {
    const { record, created } = await whileClaiming(engine, call.ref, () => engine.store.openCall(step));
    isLaunched = created;
    const isStarted = record.attempts > 0;
    const given = { ready: isStarted ? startable : undefined, gate, hasSlot, reservation };
    if (created && record.queuedUntil === undefined) launchCall(engine, record, opened, sent, given);
    else if (created && wait && !ready?.plan.waitsForWorker) {
      const remember = () => waitForWorker(engine, wait.queued.definitionId, record.ref);
      // Not before: recovery forgets calls that wait, and skips this one while it counts as being claimed.
      void engine.claiming.get(runKeyOf(record.ref))?.then(remember);
    }
    return { record, created };
  } catch (cause) {
    const { replicaId } = engine;
    if (startable && isStoreUnavailable(cause))
      endUnentered(engine, { ref: call.ref, owner: replicaId, epoch: 1 }, call.part);
    throw cause;
  } finally {
    if (hasSlot && !isLaunched) freeSlot(engine);
    if (!isLaunched) reservation?.free();
  }
}

/** Builds the step that opens a call, and starts it if it is ready. */
export function openStep(engine: Engine, call: CallToOpen, ready: Ready | undefined): OpenCallStep {
  const { limits, replicaId } = engine;
  return {
    ...call,
    start: ready?.start,
    decisions: ready && [ready.decision],
    maxRepeats: ready?.maxRepeats,
    owner: replicaId,
    leaseMs: limits.leaseMs,
    maxOpenCalls: limits.runningCalls,
    unrecordedCalls: countUnrecorded(engine, call.ref),
  };
}

/** Builds the pending part and the spec of a request; throws if its input is too large. */
function describeCall(
  { limits, registry, store }: Engine,
  request: CallRequest,
  { session, workspace }: OpenSession,
  { callerUid, behind, ...caller }: Caller,
  { trace, background, parentCallId = "" }: Pick<EntryOptions, "trace" | "background" | "parentCallId">,
): Pick<CallRecord, "ref" | "part" | "spec"> {
  const input = request.input ?? {};
  checkLevels("input", input);
  const canonical = canonicalJson(input);
  if (Buffer.byteLength(canonical) > limits.inputBytes) checkSize("input", input, limits.inputBytes);
  const now = store.now();
  const callId = request.callId || newId("call", now);
  const tool = registry.get(request.tool, workspaceRoot(workspace.name));
  return {
    ref: { root: session.rootSessionId, sessionId: session.id, callId },
    part: pendingPart({
      id: newId("prt", now),
      sessionId: session.id,
      messageId: request.messageId || newId("msg", now),
      callId,
      tool: request.tool,
      agent: request.agent,
      requester: session.requester,
      input,
      ...(request.metadata && { metadata: request.metadata }),
      callerUid,
      person: behind,
      ...(tool?.executor && { executor: tool.executor }),
      ...(background && { background }),
      parentCallId,
    }),
    spec: {
      ...caller,
      ...(parentCallId !== "" && !background && { parent: parentCallId }),
      ...(tool?.durable && { durable: true, bodyBinding: tool.bodyBinding }),
      requestDigest: digestOfRequest(request.tool, canonical),
      timeoutMs: request.timeoutMs,
      ...(request.queueMs !== undefined && { queueMs: request.queueMs }),
      providerId: request.providerId,
      modelId: request.modelId,
      definitionId: request.definitionId || (tool?.definition.definitionId ?? ""),
      ...(request.definitionId !== "" && { named: true }),
      accepted: now,
      ...(trace && { trace }),
    },
  };
}

/** Checks that a request may attach to a call: the tool and input are the same, and the result is still stored. */
export function checkAttach({ ref, part, spec, expired }: CallRecord, requestDigest: string): void {
  if (spec.requestDigest !== requestDigest) {
    throw new RequestError(
      ErrorReason.CALL_ID_REUSED,
      `call ${ref.callId} of session ${ref.sessionId} was another one (tool ${part.tool}, other input); nothing was run. Use a new call_id`,
      { call_id: ref.callId, tool: part.tool },
    );
  }
  if (!expired) return;
  throw new RequestError(
    ErrorReason.CALL_EXPIRED,
    `call ${ref.callId} ended (${part.state.case}) and its result is no longer stored; it is not run again`,
    { call_id: ref.callId, state: part.state.case ?? "" },
  );
}

/**
 * Accepts the calls that a tool's body makes, and waits for their ends. They belong to the session and principal of the parent. A
 * durable parent that waits longer leaves them: it throws `CallGone` and is resumed when they have ended.
 */
export async function makeCalls(
  engine: Engine,
  parent: Parent,
  children: readonly ChildCall[],
  options: Parameters<Engine["makeCalls"]>[3],
): Promise<ChildResult[]> {
  const { run } = parent;
  const callCount = children.length;
  const former = options.atomic && run?.isResumed ? await readFormerGate(engine, parent, callCount) : undefined;
  if (run && former?.isHeld && !former.wasOpen) {
    await releaseAtGate(engine, former);
    await leaveToRecovery(engine, run);
  }
  const gate = options.atomic && !former?.wasOpen ? createStartGate(callCount, options.changes) : undefined;
  const leave = new AbortController();
  const leaveIfGone = () => parent.signal.reason instanceof CallGone && leave.abort(parent.signal.reason);
  parent.signal.addEventListener("abort", leaveIfGone, { once: true });
  if (parent.signal.aborted) leaveIfGone();
  const parking = run?.record.spec.durable && createParking(engine, run, { callCount, gate, leave });
  try {
    return await runChildren(
      parent,
      children,
      gate,
      {
        enter(request) {
          const entry = former?.wasOpen
            ? leaveAtOpenGate(engine, former, request.callId)
            : enterChild(engine, parent, request);
          return parking ? parking.accepted(entry) : entry;
        },
        ended: async (ref) => (await waitForEnd(engine, { ref }, maxLifeMs, leave.signal)).part,
        cancel: (ref, message) => cancelCall(engine, ref, message),
        isLeft: () => leave.signal.aborted,
      },
      options.key,
    );
  } finally {
    parent.signal.removeEventListener("abort", leaveIfGone);
    if (parking) parking.end();
  }
}

/** Accepts a call that the body of a call makes, and which goes on when that call has ended. The same parent has one. */
export async function startBackground(
  engine: Engine,
  parent: Omit<Parent, "signal">,
  child: ChildCall,
): Promise<CallRef> {
  return await enterChild(engine, parent, {
    ...child,
    callId: childCallId(parent.record.ref.callId, 1),
    background: true,
  });
}

async function enterChild(
  engine: Engine,
  parent: Omit<Parent, "signal"> & Partial<Parent>,
  { tool, input, callId, gate, background = false }: ChildRequest,
): Promise<CallRef> {
  const { opened, run, signal = never, trace } = parent;
  const { part, spec } = parent.record;
  const known = run?.isResumed ? await engine.store.getCall(part.sessionId, callId) : undefined;
  if (known) return gate ? await launchAtGate(engine, { opened, signal }, known, gate) : known.ref;
  checkServing(engine);
  const caller = { principal: spec.principal, person: spec.person, callerUid: part.callerUid, behind: part.person };
  const { startsWithOthers: _, ...inherited } = part.metadata ?? {};
  const request = create(CallToolRequestSchema, {
    sessionId: part.sessionId,
    messageId: part.messageId,
    callId,
    agent: part.agent,
    tool,
    input,
    metadata: { ...inherited, parentCallId: part.callId, ...(gate && { startsWithOthers: true }) },
    providerId: spec.providerId,
    modelId: spec.modelId,
  });
  const entry = { gate, trace, background, parentCallId: part.callId };
  return (await beforeDrain(engine, enterCall(engine, request, opened, caller, entry))).record.ref;
}

const never = new AbortController().signal;
