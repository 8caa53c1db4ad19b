import { hash } from "node:crypto";
import { setTimeout as delay } from "node:timers/promises";
import type { JsonObject } from "@bufbuild/protobuf";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import { PermissionOutcome } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { type ToolErrorReason, ToolExecutor, type ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { BeginCallRequest } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import type { AskRecord } from "../approval/ports.ts";
import { noSuchPermission } from "../approval/refusals.ts";
import type { CallRef } from "../core/call-ref.ts";
import { newId } from "../core/ids.ts";
import { canonicalJson } from "../core/json.ts";
import { workspaceRoot } from "../core/paths.ts";
import type { Principal } from "../core/principal.ts";
import { lostCall, RequestError } from "../core/request-error.ts";
import { foreignName } from "../tool/foreign.ts";
import type { TraceContext } from "../tool/tool.ts";
import { lexicalWorkspace } from "../tool/workspace.ts";
import { type Accepted, callerOfRequest, checkAttach, openStep } from "./accept.ts";
import { isAskApproved } from "./asks.ts";
import { checkLevels, checkSize } from "./check-size.ts";
import { endFailedOver } from "./claims.ts";
import { type HostedSession, openHostedSession } from "./delegated-session.ts";
import { digestOfRequest } from "./digests.ts";
import { beforeDrain, checkServing, type Engine, whileClaiming } from "./engine.ts";
import {
  type Assignment,
  attemptDelegated,
  type Beginner,
  collectableUntil,
  expireUncollected,
  newAssignment,
} from "./finish-delegated.ts";
import { createBell } from "./log.ts";
import type { CallRecord, Delegation } from "./ports.ts";
import { prepareStart } from "./prepare.ts";
import type { OpenSession } from "./sessions.ts";
import { isTerminal, pendingPart } from "./state.ts";
import { mayStart } from "./stops.ts";

/** CallDecision on a delegated call, or the call that still waits for one. */
export type BeginOutcome =
  | { case: "begun"; assignment: string; part: ToolPart }
  | { case: "refused"; reason: ToolErrorReason; message: string }
  | { case: "waiting"; ref: CallRef; part: ToolPart };

/** A call that this request tries to begin. */
interface Begin extends Beginner {
  readonly ref: CallRef;
  readonly opened: OpenSession;
}

/** Open delegated calls of a session: each request reads all of them. */
const maxDelegatedCalls = 1_000;
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
  const use = [principal.id, hosted.opened.session.id, request.foreignCallId, request.resume];
  const assignment = newAssignment(use, request.retryKey);
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

/** A use of a tool, as its host describes it. */
interface ForeignUse {
  readonly request: BeginCallRequest;
  readonly input: JsonObject;
  /** Digest of tool, input and directory: an equal one is the same use again. */
  readonly digest: string;
  readonly delegation: Delegation;
}

/** An accepted call, and the first attempt to start it if this request made it. */
interface Entered extends Accepted {
  attempt?: Promise<void>;
}

/** Accepts the call, or finds the one that the request attaches to: named by its ids, or approved after its own request gave up. */
export async function enterDelegated(
  engine: Engine,
  principal: Principal,
  request: BeginCallRequest,
  hosted: HostedSession,
  { trace, ...beginner }: Beginner & { trace?: TraceContext | undefined },
): Promise<Entered> {
  const { opened } = hosted;
  const use = describeUse(engine, request, hosted);
  const named = await findNamed(engine, opened, use);
  if (typeof named !== "string") return attached(opened, named, use);
  const begun = request.retryKey !== "" && (await engine.store.findAssigned(beginner.assignment.hash));
  const known = begun || (await findApproved(engine, opened, use));
  if (known) return attached(opened, known, use);
  const call = newCall(engine, principal, use, hosted, { callId: named, trace });
  return await openDelegated(engine, call, opened, use, beginner);
}

/** Accepts a new call. One that rules allow without an ask is accepted and started in one step. */
async function openDelegated(
  engine: Engine,
  call: Pick<CallRecord, "ref" | "part" | "spec">,
  opened: OpenSession,
  use: ForeignUse,
  beginner: Beginner,
): Promise<Entered> {
  const { limits, observer, registry, store } = engine;
  await registry.refresh(workspaceRoot(opened.workspace.name));
  const prepared = await prepareStart(engine, call, atHost(opened, call));
  const ready = mayStart(engine, opened, call.part.agent) ? prepared : undefined;
  // Nothing starts for a requester that has left.
  beginner.signal.throwIfAborted();
  const sent = performance.now();
  const { record, created } = await whileClaiming(engine, call.ref, () =>
    store.openCall({
      ...openStep(engine, call, ready),
      ...{ maxOpenCalls: maxDelegatedCalls, unrecordedCalls: 0 },
      delegated: ready && { assignment: beginner.assignment.hash, reportMs: limits.reportMs },
    }),
  );
  const entered = attached(opened, record, use);
  if (!created) return entered;
  if (record.attempts === 0)
    return { ...entered, attempt: attemptDelegated(engine, record, entered.opened, sent, beginner) };
  observer.began(record).over(record.part);
  return entered;
}

function describeUse({ limits }: Engine, request: BeginCallRequest, { place }: HostedSession): ForeignUse {
  const input = request.input ?? {};
  checkLevels("input", input);
  const canonical = canonicalJson(input);
  if (Buffer.byteLength(canonical) > limits.inputBytes) checkSize("input", input, limits.inputBytes);
  const { kind, foreignTool: tool, deadlineMs } = request;
  return {
    request,
    input,
    digest: digestOfRequest(foreignName({ kind, tool }), `${canonical}\n${place.directory}`),
    delegation: {
      kind,
      tool,
      ...place,
      askMs: deadlineMs === 0 ? limits.askMs : Math.min(deadlineMs, limits.askMs),
      collectMs: limits.collectMs,
    },
  };
}

/** Checks that the request is the same use. */
function attached(opened: OpenSession, record: CallRecord, { digest }: ForeignUse): Entered {
  checkAttach(record, digest);
  return { record, opened: atHost(opened, record) };
}

/** Opens the workspace of a call as its host sees it. */
function atHost(opened: OpenSession, { spec }: Pick<CallRecord, "spec">): OpenSession {
  if (spec.delegated?.isDiskShared) return opened;
  return { ...opened, workspace: lexicalWorkspace(opened.workspace) };
}

/** Finds the call that the request names; otherwise returns the id for a new one. */
async function findNamed(engine: Engine, { session }: OpenSession, use: ForeignUse): Promise<CallRecord | string> {
  const { store, getAsk } = engine;
  const { resume, foreignCallId } = use.request;
  if (resume !== "") {
    const ask = await getAsk(session.id, resume);
    const record = ask && (await store.getCall(session.id, ask.call.callId));
    if (!record) throw noSuchPermission({ sessionId: session.id, permissionId: resume });
    return record;
  }
  if (foreignCallId !== "") return (await store.getCall(session.id, foreignCallId)) ?? foreignCallId;
  return await findUnnamed(engine, session.id, use.digest);
}

/** Finds the waiting call of a use without an id, or the id for a new one. Of such calls only the last one can wait. */
async function findUnnamed({ store }: Engine, sessionId: string, digest: string): Promise<CallRecord | string> {
  const idOf = (count: number) => `call_${hash("sha256", `${sessionId}\n${digest}\n${count}`, "hex").slice(0, 32)}`;
  const find = (count: number) => store.getCall(sessionId, idOf(count));
  let [low, high] = [0, 1];
  while (await find(high - 1)) {
    low = high;
    high *= 2;
  }
  while (low < high - 1) {
    const middle = Math.floor((low + high) / 2);
    if (await find(middle - 1)) low = middle;
    else high = middle;
  }
  const last = low === 0 ? undefined : await find(low - 1);
  return last?.part.state.case === "pending" ? last : idOf(low);
}

/** Finds an approved call of the same use whose own request gave up. */
async function findApproved(
  { asksOf, store }: Engine,
  { session }: OpenSession,
  { digest }: ForeignUse,
): Promise<CallRecord | undefined> {
  for (const record of await store.findDelegated(session.id, digest)) {
    const { owner, part, ref } = record;
    if (part.state.case !== "pending" || owner !== "" || part.permissionIds.length > 0) continue;
    const asks = await asksOf(ref);
    const isAnswered = asks.some(
      (ask) => isAskApproved(ask, asks) || ask.settled?.outcome === PermissionOutcome.EDITED,
    );
    if (isAnswered && collectableUntil(record, asks) > store.now()) return record;
  }
  return undefined;
}

/** Builds the pending part and the spec of a new call. */
function newCall(
  { foreign, sessions, store }: Engine,
  principal: Principal,
  { request, input, digest, delegation }: ForeignUse,
  { opened: { session } }: HostedSession,
  { callId, trace }: { callId: string; trace: TraceContext | undefined },
): Pick<CallRecord, "ref" | "part" | "spec"> {
  const now = store.now();
  const { callerUid, behind, ...caller } = callerOfRequest(principal);
  const { permissionMode } = request;
  const agent = sessions.agentFor(principal, "", session);
  const name = foreignName(delegation);
  return {
    ref: { root: session.rootSessionId, sessionId: session.id, callId },
    part: pendingPart({
      callerUid,
      person: behind,
      id: newId("prt", now),
      sessionId: session.id,
      messageId: newId("msg", now),
      callId,
      tool: name,
      agent,
      requester: session.requester,
      input,
      executor: ToolExecutor.DELEGATED,
      metadata: {
        directory: delegation.directory,
        ...(permissionMode !== "" && { permissionMode }),
      },
    }),
    spec: {
      ...caller,
      requestDigest: digest,
      timeoutMs: 0,
      providerId: "",
      modelId: "",
      definitionId: foreign.tool(name).definition.definitionId,
      accepted: now,
      delegated: delegation,
      ...(trace && { trace }),
    },
  };
}
