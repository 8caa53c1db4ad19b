import { hash, randomBytes } from "node:crypto";
import { create, type JsonObject } from "@bufbuild/protobuf";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import { DecisionKind, type DecisionRecord, HostReportSchema } from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { Session } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import { ToolEffects, ToolErrorReason, type ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { FinishCallRequest } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { decisionOn } from "../approval/decisions.ts";
import type { AskRecord } from "../approval/ports.ts";
import { newId } from "../core/ids.ts";
import { canonicalJson } from "../core/json.ts";
import { workspaceRoot } from "../core/paths.ts";
import type { Principal } from "../core/principal.ts";
import { RequestError } from "../core/request-error.ts";
import { ToolFailure } from "../tool/errors.ts";
import { lexicalWorkspace } from "../tool/workspace.ts";
import { approveCall } from "./approve.ts";
import { decidedCall } from "./call-record.ts";
import { checkMetadata } from "./check-size.ts";
import { CallGone, endAsRead, endCall } from "./ends.ts";
import type { Engine } from "./engine.ts";
import { newRunning } from "./launch.ts";
import { createCallOutput } from "./output.ts";
import type { CallRecord } from "./ports.ts";
import { resolveTool, runBeforeHooks } from "./prepare.ts";
import { type Running, runKeyOf } from "./running.ts";
import type { OpenSession } from "./sessions.ts";
import { failCall, settleCall } from "./settle.ts";
import { failed, inputOf, isTerminal } from "./state.ts";
import { storeError, storeOutput } from "./stored-outputs.ts";
import { releaseCall } from "./waiting.ts";

const maxAttempts = 3;

/** Ends a call that its host ran with the reported result. The same assignment again returns the call and changes nothing. */
export async function finishDelegated(
  engine: Engine,
  principal: Principal,
  request: FinishCallRequest,
): Promise<ToolPart> {
  checkMetadata(request.metadata);
  const assignment = assignmentHash(request.assignment);
  for (let attempts = 0; ; attempts++) {
    const record = await engine.store.findAssigned(assignment);
    if (record?.spec.principal !== principal.id) throw noSuchAssignment();
    if (isTerminal(record.part)) {
      await noteLateReport(engine, principal, record, request);
      return record.part;
    }
    if (attempts === maxAttempts) throw new Error(`the report on call ${record.ref.callId} could not be recorded`);
    // Another report or the deadline may end the call first; then its part is returned.
    await writeReport(engine, principal, record, request);
  }
}

async function writeReport(
  engine: Engine,
  principal: Principal,
  record: CallRecord,
  request: FinishCallRequest,
): Promise<void> {
  const { inputDigest } = request;
  const part = { ...record.part, reportedBy: principal.id, reportedInputDigest: inputDigest };
  const known = await engine.sessions.find(record.ref.sessionId);
  if (!known) throw noSuchAssignment();
  // A report opens no file, so that any replica takes it, also one that does not serve the workspace.
  const workspace = lexicalWorkspace({ name: known.session.workspace, directory: "/" });
  const call = newRunning(engine, { ...record, part }, { ...known, workspace }, performance.now());
  call.tool = engine.foreign.tool(part.tool);
  call.reports = [reportRecord(principal, record, request, false)];
  try {
    if (inputDigest !== "" && inputDigest !== digestOfInput(part)) await endChanged(engine, call, request);
    else if (request.result.case === "output") await complete(engine, call, request, request.result.value);
    else await failCall(engine, call, new ToolFailure(request.result.value ?? ""), metadataOf(request));
  } finally {
    call.observed.over(call.record.part);
  }
}

/** Bounds the output, runs the after hooks and ends the call, as for a body that ran here. */
async function complete(engine: Engine, call: Running, request: FinishCallRequest, text: string): Promise<void> {
  const { limits, outputs, store } = engine;
  const { ref, part } = call.record;
  const output = createCallOutput({
    root: ref.root,
    callId: ref.callId,
    id: newId("out", store.now()),
    store: outputs,
    limit: limits.outputBytes,
    keep: call.tool?.keep ?? { end: "head", lines: 2_000, bytes: 51_200 },
    record: async () => undefined,
  });
  const title = part.state.case === "running" ? (part.state.value.title ?? "") : "";
  const result = { output: text, metadata: metadataOf(request) };
  try {
    await settleCall(engine, call, { title, asks: [] }, { result, output });
  } catch (cause) {
    await failCall(engine, call, cause, metadataOf(request));
  }
}

/** Ends a call whose host ran another input than the approved one, and raises the alert: what ran was never approved. */
async function endChanged(engine: Engine, call: Running, { result, ...request }: FinishCallRequest): Promise<void> {
  const { log, store } = engine;
  const { ref, part, spec } = call.record;
  const expected = digestOfInput(part);
  log.error("a host ran another input than the approved one", {
    sessionId: ref.sessionId,
    callId: ref.callId,
    tool: part.tool,
    principal: spec.principal,
    args: { approvedDigest: expected, reportedDigest: request.inputDigest },
  });
  const text = result.value ?? "";
  const outputPath = text === "" ? null : await storeOutput(engine, call, Buffer.from(text));
  const error = await storeError(
    engine,
    call,
    `The agent reported that it ran another input (digest ${request.inputDigest}) than the approved one (digest ${expected}). What it ran was not approved: look at what it did.`,
  );
  const changed = {
    reason: ToolErrorReason.CHANGED_AFTER_APPROVAL,
    error,
    effects: ToolEffects.UNKNOWN,
    metadata: { ...metadataOf(request), outputPath },
  };
  await endCall(engine, {
    ref,
    guard: { fence: call.fence },
    part: failed(part, changed, store.now()),
    decisions: call.reports ?? [],
  });
}

/** Adds a report to the audit that came after the call had ended without one. */
async function noteLateReport(
  { store }: Engine,
  principal: Principal,
  record: CallRecord,
  request: FinishCallRequest,
): Promise<void> {
  if (record.part.reportedBy !== "") return;
  await store.noteReport(record.ref, [reportRecord(principal, record, request, true)]);
}

function reportRecord(
  principal: Principal,
  record: CallRecord,
  { result, inputDigest }: FinishCallRequest,
  late: boolean,
): DecisionRecord {
  const about = { digest: digestOfInput(record.part), decisions: [] };
  return {
    ...decisionOn(decidedCall(record), DecisionKind.REPORTED, about),
    by: principal.id,
    report: create(HostReportSchema, { failed: result.case === "error", inputDigest, late }),
  };
}

/** Digest of the input to run, as hosts compute it; see FinishCallRequest.input_digest. */
function digestOfInput(part: ToolPart): string {
  return hash("sha256", canonicalJson(inputOf(part)), "hex");
}

function metadataOf({ exit, metadata }: Pick<FinishCallRequest, "exit" | "metadata">): JsonObject {
  return { ...metadata, ...(exit !== undefined && { exit }) };
}

function noSuchAssignment(): RequestError {
  return new RequestError(
    ErrorReason.NO_SUCH_ASSIGNMENT,
    "no call of this token began with that assignment; send the assignment that BeginCall returned, with the same token",
  );
}

/** Ends a delegated call whose time is over. Nobody here runs it, so it is neither claimed nor lost; until then it stays as it is. */
export async function recoverDelegated(engine: Engine, record: CallRecord): Promise<void> {
  const { asksOf, store } = engine;
  const { part, ref } = record;
  if (part.state.case === "running") return await endUnreported(engine, record);
  if (part.permissionIds.length > 0) return;
  if (collectableUntil(record, await asksOf(ref)) <= store.now()) await expireUncollected(engine, record);
}

/** Returns the time until which a request may collect the call's approval. */
export function collectableUntil({ spec }: CallRecord, asks: readonly AskRecord[]): number {
  const answered = asks.map(({ settled }) => settled?.time ?? 0);
  return Math.max(spec.accepted, ...answered) + (spec.delegated?.collectMs ?? 0);
}

/** Ends a call that was approved, or never decided, and that no request collected. Returns false if it has changed since it was read. */
export async function expireUncollected(engine: Engine, record: CallRecord): Promise<boolean> {
  const error =
    "The call was not begun: its agent no longer waited for the answer. It was not run. Call the tool again if it is still needed.";
  return await endAsRead(engine, record, { reason: ToolErrorReason.EXPIRED, error });
}

async function endUnreported(engine: Engine, record: CallRecord): Promise<void> {
  const { limits, store } = engine;
  const { part } = record;
  const start = part.state.case === "running" ? (part.state.value.time?.start ?? 0) : 0;
  if (start + limits.reportMs > store.now() || (await hasLiveSubagent(engine, record))) return;
  const error = `The call was approved and begun, but its agent did not report a result within ${limits.reportMs} ms. It may have had none, some or all of its effects: look at what it did before you repeat it.`;
  await endAsRead(engine, record, { reason: ToolErrorReason.NOT_REPORTED, error, effects: ToolEffects.UNKNOWN });
}

/** Sessions of a tree that are read at once. */
const pageSize = 100;
/** Enough for the last event of a log. */
const lastEventBytes = 1;

/**
 * Checks if a call that started a subagent still works: a session below its own has an open call, or had an event within
 * `reportMs`. The agent reports such a call only when the subagent is done.
 */
async function hasLiveSubagent(engine: Engine, { ref, part }: CallRecord): Promise<boolean> {
  const { foreign, store } = engine;
  if (!foreign.tool(part.tool).permissions?.includes("task")) return false;
  for (let before: string | undefined; ; ) {
    const page = await store.listSessions({ root: ref.root, limit: pageSize, ...(before && { before }) });
    for (const session of page)
      if (session.parentSessionId === ref.sessionId && (await isLive(engine, session))) return true;
    if (page.length < pageSize) return false;
    before = page.at(-1)?.id;
  }
}

async function isLive({ limits, store }: Engine, { id: sessionId, lastSeq }: Session): Promise<boolean> {
  if ((await store.listCalls({ sessionId, open: true, limit: 1 })).length > 0) return true;
  const { events } = await store.readLog(sessionId, Number(lastSeq) - 1, lastEventBytes);
  return events.some(({ time }) => time + limits.reportMs > store.now());
}

/** Secret of a delegated call that begins, and the hash of it that is stored. */
export interface Assignment {
  readonly secret: string;
  readonly hash: string;
}

/** Makes an assignment of 128 bits: the same one for the same use and key, without a key another one each time. */
export function newAssignment(use: readonly string[], retryKey: string): Assignment {
  const words = [...use, retryKey || randomBytes(16).toString("hex")];
  const secret = hash("sha256", JSON.stringify(words), "hex").slice(0, 32);
  return { secret, hash: assignmentHash(secret) };
}

/** Returns the hash by which the store finds the call of an assignment. */
function assignmentHash(secret: string): string {
  return hash("sha256", secret, "hex");
}

/** Request that tries to begin a call. */
export interface Beginner {
  /** Given out only if this request writes the start mark. */
  readonly assignment: Assignment;
  /** Aborted when the requester leaves: nothing starts for it then. */
  readonly signal: AbortSignal;
}

/**
 * Takes the steps of a delegated call that this replica holds the lease of, up to its start mark or its permission requests. The
 * lease ends with either. Never throws: a failure becomes the call's state.
 */
export function attemptDelegated(
  engine: Engine,
  record: CallRecord,
  opened: OpenSession,
  leaseConfirmed: number,
  { assignment, signal }: Beginner,
): Promise<void> {
  const call = newRunning(engine, record, opened, leaseConfirmed, { assignment: assignment.hash });
  const key = runKeyOf(record.ref);
  const leave = () => call.controller.abort(new CallGone());
  if (signal.aborted) leave();
  signal.addEventListener("abort", leave, { once: true });
  const done = attempt(engine, call).finally(() => {
    signal.removeEventListener("abort", leave);
    if (engine.runs.get(key)?.call === call) engine.runs.delete(key);
  });
  engine.runs.set(key, { call, done: done.then(() => undefined) });
  return done;
}

async function attempt(engine: Engine, call: Running): Promise<void> {
  try {
    await engine.registry.refresh(workspaceRoot(call.opened.workspace.name));
    call.tool = resolveTool(engine, call.record, call.opened);
    await runBeforeHooks(engine, call);
    await approveCall(engine, call, call.tool);
  } catch (cause) {
    await failCall(engine, call, cause);
  } finally {
    call.observed.over(call.record.part);
    if (call.record.part.state.case === "pending") await tryRelease(engine, call.record);
  }
}

/** Releases a call; if that fails, renewal finds the lease without a run and releases it. */
async function tryRelease(engine: Engine, record: CallRecord): Promise<void> {
  await releaseCall(engine, record).catch((error: unknown) => {
    const { callId } = record.ref;
    engine.log.warn("the lease of a delegated call could not be released yet", { error, callId });
  });
}
