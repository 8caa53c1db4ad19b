import { createHash } from "node:crypto";
import { equals, type MessageInitShape } from "@bufbuild/protobuf";
import {
  ApprovalNeedSchema,
  PermissionAction,
  type PermissionDecision,
  PermissionReason,
  type QuestionAnswer,
} from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { PermissionRequest, PreviewSchema } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { UnapprovedAsk } from "../approval/judge-asks.ts";
import type { AskRecord } from "../approval/ports.ts";
import { type Ask, questionPermission } from "../core/ask.ts";
import { currentNeed } from "../core/current-need.ts";
import type { Subject } from "../policy/model.ts";
import type { Plan, Tool } from "../tool/tool.ts";
import { judgedWorkspace } from "../tool/workspace.ts";
import { resolvePlanPaths } from "./ask-paths.ts";
import {
  askHooks,
  checkApproved,
  isAskApproved,
  openPermissionRequests,
  requestFor,
  waitUntilSettled,
} from "./asks.ts";
import { allowedRecord, noteCall, refreshCall } from "./call-record.ts";
import { decide, visiblePreview } from "./decide.ts";
import { approvalDigest } from "./digests.ts";
import { denied } from "./ends.ts";
import type { Engine } from "./engine.ts";
import { type Running, subjectFor } from "./running.ts";
import { inputOf } from "./state.ts";
import { storePreview, storeView } from "./stored-outputs.ts";
import { outsideSlot } from "./waiting.ts";

/** An ask from a running body, what approvers see of its effect, and its questions if it is one for the permission `question`. */
export interface AskOfBody extends Pick<Plan, "questions"> {
  ask: Ask;
  /** Names the ask in its body: asked again with the same key, it is the same ask. */
  key?: string | undefined;
  preview?: MessageInitShape<typeof PreviewSchema> | undefined;
}

/**
 * Decides an ask from a running body and waits for its settlement. Returns the answers to its questions. Without a key the ask ends
 * with this replica, as the call does.
 */
export async function askInBody(
  engine: Engine,
  call: Running,
  { tool, plan: approved }: { tool: Tool; plan: Plan },
  { ask, key, preview, questions }: AskOfBody,
): Promise<readonly QuestionAnswer[]> {
  const prefix = key === undefined ? undefined : keyedPrefix(call, key);
  const before = prefix === undefined ? [] : await engine.asksOf(call.record.ref);
  const known = before.flatMap(({ request }) => (prefix && request.id.startsWith(prefix) ? request : []));
  if (known.length > 0) return await awaitAnswers(engine, call, ask, known);
  const workspace = judgedWorkspace(tool, call.opened.workspace);
  const subject = subjectFor(call.opened, call.record.part.agent, tool);
  const plan = await resolvePlanPaths(
    { title: "", asks: [ask], ...(questions && { questions }), ...(ask.cwd !== undefined && { cwd: ask.cwd }) },
    workspace,
  );
  const { principal } = call.record.spec;
  const request = inputOf(call.record.part);
  const decision = await decide(engine, { subject, principal, plan, workspace, tool, request }, { grants: "adopt" });
  const { verdict } = decision;
  if (verdict.action === PermissionAction.DENY) throw denied(verdict);
  const recordAllowed = async (why?: string) => {
    await noteCall(engine, call.fence, { decisions: [allowedRecord(call.record, { verdict }, [], why)] });
    return [];
  };
  if (verdict.action === PermissionAction.ALLOW) return await recordAllowed();
  const whole = approved.asks.filter(({ wholeCall }) => wholeCall).map(({ permission }) => permission);
  const isCovered = coversBody(engine, call, approved)
    ? (ask: UnapprovedAsk) => isUnruled(ask, verdict.decisions)
    : () => false;
  const isOwn = (each: UnapprovedAsk) => each.isForPersons === true && !isApprovedAlike(engine, call, each, subject);
  const wanted = verdict.unapproved.filter(
    (each) => !isOwn(each) && !whole.includes(each.permission) && !isCovered(each),
  );
  const unapproved = [...(await withoutApprovedDirectories(engine, call, wanted)), ...verdict.unapproved.filter(isOwn)];
  if (unapproved.length === 0) return await recordAllowed(covered);
  const digest = await approvalDigest(engine, tool, request, decision, call.opened);
  const unasked = await askHooks(call, unapproved, plan, digest);
  if (unasked.length === 0) return await recordAllowed();
  const shown = preview && (await storePreview(engine, call, visiblePreview(preview)));
  const { metadata } = ask;
  const view = await storeView(engine, call, { ...(await decision.view()), title: approved.title, metadata });
  const requests = (await decision.withCodeRisks(unasked)).map((each, index) => {
    const id = prefix && `${prefix}${index}`;
    return requestFor(engine, call, { ask: each, plan, verdict }, { preview: shown, view, subject, digest, id });
  });
  const opened = await withoutApprovedAlike(engine, call, requests);
  if (opened.length === 0) return await recordAllowed(covered);
  do await refreshCall(engine, call);
  while (!(await openPermissionRequests(engine, call, opened, { ...verdict, rulesVersion: undefined }, [])));
  return await awaitAnswers(engine, call, ask, opened);
}

const covered = "what was approved for the call covers it";

/** True if an ask was approved, by persons who still count. */
const isHeld = ({ permissions }: Engine, asked: AskRecord, ofCall: readonly AskRecord[]) =>
  isAskApproved(asked, ofCall) && permissions.isStillMet(asked);

/** True if as many persons of the same groups have approved something of this call: what that covers, they need not approve again. */
function isApprovedAlike(engine: Engine, { asks = [] }: Running, ask: UnapprovedAsk, subject: Subject): boolean {
  const need = engine.permissions.approvalOf(ask, subject)?.need;
  return asks.some((asked) => {
    const held = currentNeed(asked.request);
    return isHeld(engine, asked, asks) && held && need && equals(ApprovalNeedSchema, held, need);
  });
}

/** Leaves out what an approver approved for this call in the same words, with the same preview and the same code: it holds until it ends. */
async function withoutApprovedAlike(
  engine: Engine,
  call: Running,
  requests: readonly PermissionRequest[],
): Promise<PermissionRequest[]> {
  const settled = call.asks ?? (await engine.asksOf(call.record.ref));
  const approved = new Set(
    settled.flatMap((asked) => (isHeld(engine, asked, settled) ? (asked.request.view?.digest ?? []) : [])),
  );
  return requests.filter(
    ({ permission, view }) => permission === questionPermission || !approved.has(view?.digest ?? ""),
  );
}

/** Leaves out the directories outside the workspace that an approver approved for this call: they hold until it ends. */
async function withoutApprovedDirectories(
  engine: Engine,
  call: Running,
  asks: readonly UnapprovedAsk[],
): Promise<UnapprovedAsk[]> {
  if (!asks.some(({ permission }) => permission === outside)) return [...asks];
  const settled = call.asks ?? (await engine.asksOf(call.record.ref));
  const approved = new Set(
    settled.flatMap((asked) =>
      asked.request.permission === outside && isHeld(engine, asked, settled) ? asked.request.patterns : [],
    ),
  );
  return asks.flatMap((ask) => {
    if (ask.permission !== outside) return ask;
    const isLeft = ask.patterns.map((pattern) => !approved.has(pattern));
    const patterns = ask.patterns.filter((_, i) => isLeft[i]);
    return patterns.length === 0
      ? []
      : { ...ask, patterns, ...(ask.paths && { paths: ask.paths.filter((_, i) => isLeft[i]) }) };
  });
}

const outside = "external_directory";

/** Returns the beginning of the ids of the permission requests of an ask with a key. */
function keyedPrefix({ record: { ref, attempts } }: Running, key: string): string {
  const name = JSON.stringify([ref.sessionId, ref.callId, attempts, key]);
  return `per_${createHash("sha256").update(name).digest("base64url").slice(0, 22)}_`;
}

/** Waits until permission requests of a body are settled; throws if one is refused. */
async function awaitAnswers(
  engine: Engine,
  call: Running,
  ask: Ask,
  requests: readonly PermissionRequest[],
): Promise<readonly QuestionAnswer[]> {
  const wait = () => waitUntilSettled(engine, call);
  // A body that works meanwhile may end before the answer.
  await (ask.whileWorking ? wait() : outsideSlot(engine, call, wait));
  for (const request of requests) checkApproved(engine, call, request, { endsCall: !ask.refusable });
  const opened = new Set(requests.map(({ id }) => id));
  return (call.asks ?? []).flatMap(({ request, settled }) => (opened.has(request.id) ? (settled?.answers ?? []) : []));
}

/** True if an approver answered an ask of this call that covers what its body asks. */
function coversBody(engine: Engine, { asks = [] }: Running, approved: Plan): boolean {
  const covering = approved.asks.flatMap((ask) => (ask.coversBody ? ask.permission : []));
  return asks.some((asked) => covering.includes(asked.request.permission) && isHeld(engine, asked, asks));
}

/** True if an ask only asks because no rule says anything about it. Directories outside the workspace are asked for each time. */
function isUnruled({ permission, patterns }: UnapprovedAsk, decisions: readonly PermissionDecision[]): boolean {
  return (
    permission !== outside &&
    decisions
      .filter((decision) => decision.action === PermissionAction.ASK && decision.permission === permission)
      .every(({ pattern, reasonCode }) => patterns.includes(pattern) && reasonCode === PermissionReason.NO_RULE)
  );
}
