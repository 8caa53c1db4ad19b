import { hash } from "node:crypto";
import { create, type JsonObject } from "@bufbuild/protobuf";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import { DecisionKind, type DecisionRecord, HostReportSchema } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { ToolEffects, ToolErrorReason, type ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { FinishCallRequest } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { decisionOn } from "../approval/decisions.ts";
import { canonicalJson } from "../core/canonical-json.ts";
import { newId } from "../core/ids.ts";
import type { Principal } from "../core/principal.ts";
import { RequestError } from "../core/request-error.ts";
import { ToolFailure } from "../tool/errors.ts";
import { lexicalWorkspace } from "../tool/lexical-workspace.ts";
import { assignmentHash } from "./attempt-delegated.ts";
import { checkKeys, checkSize } from "./check-size.ts";
import { decidedCall } from "./decision-records.ts";
import { endCall } from "./end-call.ts";
import type { Engine } from "./engine.ts";
import { newRunning } from "./launch.ts";
import { createCallOutput } from "./output.ts";
import type { CallRecord } from "./ports.ts";
import type { Running } from "./running.ts";
import { failCall, settleCall } from "./settle.ts";
import { storeError, storeOutput } from "./spill.ts";
import { failed, inputOf, isTerminal } from "./state.ts";

const maxAttempts = 3;

/** Ends a call that its host ran with the reported result. The same assignment again returns the call and changes nothing. */
export async function finishDelegated(
  engine: Engine,
  principal: Principal,
  request: FinishCallRequest,
): Promise<ToolPart> {
  checkKeys("metadata", request.metadata);
  checkSize("metadata", request.metadata, 64 * 1024);
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
