import { create } from "@bufbuild/protobuf";
import {
  DecisionKind,
  PermissionAction,
  PermissionDecisionSchema,
  PermissionOutcome,
  type Question,
  type QuestionAnswer,
  QuestionSchema,
} from "../../gen/opencode/tool/v1/permission_pb.ts";
import {
  type CallView,
  type PermissionRequest,
  PermissionToolContextSchema,
  type Preview,
  ToolErrorReason,
} from "../../gen/opencode/tool/v1/tool_pb.ts";
import { decisionOn } from "../approval/decisions.ts";
import type { Judged, UnapprovedAsk } from "../approval/judge-asks.ts";
import type { AskRecord } from "../approval/ports.ts";
import { isQuestion, refusalText } from "../approval/refusals.ts";
import { questionPermission } from "../core/ask.ts";
import { newId } from "../core/ids.ts";
import { workspaceRoot } from "../core/paths.ts";
import type { ExpandedAsk, Subject } from "../policy/model.ts";
import type { Plan, Tool } from "../tool/tool.ts";
import { decideByHooks, isAllowedByHooks } from "./call-hooks.ts";
import { decidedCall, refreshCall } from "./call-record.ts";
import { type CallDecision, changedSince, type DecisionView } from "./decide.ts";
import { approvalDigest } from "./digests.ts";
import { CallEnd, denied, maxLifeMs, waitsAlone } from "./ends.ts";
import type { Engine } from "./engine.ts";
import type { Running } from "./running.ts";
import { inputOf } from "./state.ts";
import { storePreview, storeView } from "./stored-outputs.ts";

/** Settlements of a call's asks that concern one plan, which is named by its digest. */
export interface CallAnswers {
  digest: string;
  /** All asks of the call. */
  asks: readonly AskRecord[];
  /** Requests for exactly this plan that were approved. */
  approved: readonly PermissionRequest[];
  /** Asks of the plan that no approval covers. */
  missing: readonly UnapprovedAsk[];
  /** Answers to the questions of this plan. */
  answers: readonly QuestionAnswer[];
  /** The latest approved request for another plan of this call. */
  former?: PermissionRequest | undefined;
  /** The digest by which hooks remember their answers: a workspace that changes all the time must not ask them without end. */
  hookDigest?: string;
  /** The approval holds for the code as it is when the call starts. */
  asStarted?: boolean;
  /** True if a missing ask was approved by persons of whom some do not count any more. */
  isVoid?: boolean;
}

/** The beginning of the reason why a call is asked for again whose code has changed. */
const changedCode = "changed since you were asked";

/** Answers for a plan that needs no ask. */
export const nothingAsked: CallAnswers = { digest: "", asks: [], approved: [], missing: [], answers: [] };

/** Collects the approvals of exactly this plan, and what it needs beyond them. */
export async function answersTo(
  engine: Engine,
  call: Pick<Running, "record" | "opened" | "asks"> & Partial<Pick<Running, "hooks">>,
  tool: Tool,
  decision: CallDecision,
): Promise<CallAnswers> {
  const asks = call.asks ?? (await engine.asksOf(call.record.ref));
  const digestOf = (code: Parameters<typeof approvalDigest>[5]) =>
    approvalDigest(engine, tool, inputOf(call.record.part), decision, call.opened, code);
  const strict = await digestOf("all");
  const hookDigest = call.hooks === undefined ? strict : await digestOf("named");
  const answered = asks.filter((asked) => isAskApproved(asked, asks));
  const approved = answered.filter(engine.permissions.isStillMet);
  const approvals = approved.map(({ request }) => request);
  const outdated = approvals.filter((request) => request.digest !== strict);
  // Code that changed again after it was asked for again changes all the time.
  const asStarted = outdated.some(({ changed }) => changed.startsWith(changedCode));
  const digest = asStarted ? await digestOf("none") : strict;
  const given = approved.filter(({ request }) => request.digest === digest);
  const isByHooks = (ask: UnapprovedAsk) =>
    call.hooks !== undefined && !isForPerson(ask) && isAllowedByHooks(call.hooks, hookDigest, ask);
  const missing = decision.verdict.unapproved.filter(
    (ask) => !isByHooks(ask) && !given.some((asked) => isFor(ask, asked)),
  );
  const answers = given.flatMap(({ settled }) => settled?.answers ?? []);
  const former = outdated.findLast((request) => request.digest !== digest);
  const isVoid = answered.some((asked) => !approved.includes(asked) && missing.some((ask) => isFor(ask, asked)));
  return {
    digest,
    hookDigest,
    asks,
    approved: given.map(({ request }) => request),
    missing,
    answers,
    former,
    asStarted,
    isVoid,
  };
}

/**
 * Step 6, ask: opens a permission request for everything missing, and withdraws those of an earlier plan. Returns true if the
 * call waits now: unless it belongs to an atomic batch, the same step ended its lease.
 */
export async function openMissingAsks(
  engine: Engine,
  call: Running,
  decision: CallDecision,
  { digest, hookDigest = digest, asks, missing, former, asStarted = false, isVoid = false }: CallAnswers,
  { preview, files, targets = [], missing: unseen = [] }: DecisionView,
  subject: Subject,
): Promise<boolean> {
  if (call.record.attempts > 0) {
    // A body that was entered is not asked for again, not even for a repeat after a crash.
    throw new CallEnd(
      ToolErrorReason.EXECUTOR_LOST,
      "The executor stopped responding while the tool ran. It is not run again, as it would have to be asked for again: repeat the call.",
    );
  }
  const open = asks.filter(({ settled }) => !settled);
  const isOpen = (ask: ExpandedAsk) => open.some((asked) => asked.request.digest === digest && isFor(ask, asked));
  const isStale = (asked: AskRecord) => asked.request.digest !== digest || !missing.some((ask) => isFor(ask, asked));
  const stale = open.filter(isStale);
  const unopened = missing.filter((ask) => !isOpen(ask));
  const unasked = await askHooks(call, unopened, decision.plan, hookDigest);
  if (stale.length === 0 && unasked.length === 0) return false;
  const shown = preview && (await storePreview(engine, call, await preview()));
  const unbound = asStarted ? ["the code as it is when the call starts: it changed after each approval"] : [];
  const view = await storeView(engine, call, {
    ...{ title: decision.plan.title, missing: [...unseen, ...unbound], targets },
    ...(files && { files }),
  });
  const code = former ? changeText(changedSince(former, await decision.bound()), asStarted) : "";
  const { rebound } = call.record.spec;
  const isSaid = rebound === undefined || asks.some(({ request }) => request.created > rebound.time);
  const changed = [code, isSaid ? "" : rebound.why, isVoid ? voidText : ""].filter(Boolean).join("; ");
  const unopenedAsks = await decision.withCodeRisks(unasked);
  const bound = await boundOf(engine, call, unopenedAsks, subject);
  const requests = unopenedAsks.map((ask) =>
    requestFor(engine, call, { ...decision, ask }, { preview: shown, view, changed, subject, digest, ...bound }),
  );
  return (await openPermissionRequests(engine, call, requests, decision.verdict, stale)) && requests.length > 0;
}

const leftText = ({ permission }: PermissionRequest) =>
  `${permission}: a person who approved it has left the group since. Repeat the call, so that it is asked for again.`;

const voidText = "a person who approved it has left the group since, so it needs another approval";

/** Says which files changed since a call was asked for. */
function changeText(names: readonly string[], asStarted: boolean): string {
  if (names.length === 0 && !asStarted) return "";
  const shown = names.slice(0, maxNamed);
  const more = names.length > maxNamed ? ` and ${names.length - maxNamed} more` : "";
  const what = names.length === 0 ? "files of the workspace" : `${shown.join(", ")}${more}`;
  const again = "They changed after each approval, so this one holds for them as they are when it starts.";
  return `${changedCode}: ${what}${asStarted ? `. ${again}` : ""}`;
}

const maxNamed = 8;

/** Lets hooks decide before approvers are asked. Returns the asks they leave open, and questions; throws if a hook denies one. */
export async function askHooks(
  { hooks }: Running,
  asks: readonly UnapprovedAsk[],
  plan: Plan,
  digest: string,
): Promise<UnapprovedAsk[]> {
  const open: UnapprovedAsk[] = [];
  for (const ask of asks) {
    const decided = await decideByHooks(hooks, digest, ask, plan);
    if (decided === "ask" || (decided === "allow" && isForPerson(ask))) open.push(ask);
    if (decided !== "deny") continue;
    const { permission, patterns } = ask;
    const by = { permission, action: PermissionAction.DENY, reason: "a plugin denies it" };
    const decisions = patterns.map((pattern) => create(PermissionDecisionSchema, { ...by, pattern }));
    throw denied({ decisions });
  }
  return open;
}

/**
 * Returns the longest time for which requests of a call are open: beyond a day only as many as `long_asks`. They are counted before
 * the step that opens them, so that those of one moment may be a few more.
 */
async function boundOf(
  { countLongAsks, limits, permissions, store }: Engine,
  call: Running,
  asks: readonly ExpandedAsk[],
  subject: Subject,
): Promise<{ maxMs: number; warnings?: string[] }> {
  const long = asks.filter((ask) => (permissions.approvalOf(ask, subject)?.askMs ?? 0) > maxLifeMs).length;
  if (long === 0 || !waitsAlone(call)) return { maxMs: maxLifeMs };
  if ((await countLongAsks(store.now() + maxLifeMs)) + long <= limits.longAsks) return { maxMs: Infinity };
  const why = `open for a day only: as many requests as long_asks allows (${limits.longAsks}) stay open for longer`;
  return { maxMs: maxLifeMs, warnings: [why] };
}

/** Builds the permission request for one ask of a call. */
export function requestFor(
  { limits, permissions, store }: Engine,
  call: Running,
  { ask, plan, verdict }: Pick<CallDecision, "plan" | "verdict"> & { ask: ExpandedAsk },
  {
    preview,
    view,
    changed = "",
    subject,
    digest,
    id = newId("per", store.now()),
    maxMs = maxLifeMs,
    warnings = [],
  }: {
    preview?: Preview | undefined;
    view: CallView;
    changed?: string;
    subject: Subject;
    digest: string;
    id?: string | undefined;
    maxMs?: number;
    warnings?: string[];
  },
): PermissionRequest {
  const { part, spec } = call.record;
  // The host of a delegated call does not wait for longer than it says.
  const ownMs = spec.delegated?.askMs ?? limits.askMs;
  const { askMs = ownMs } = permissions.approvalOf(ask, subject) ?? {};
  const metadata = plan.asks.find(({ permission }) => permission === ask.permission)?.metadata;
  return permissions.request(
    { ...ask, ...(metadata && { metadata }) },
    verdict.decisions,
    {
      sessionId: part.sessionId,
      agent: part.agent,
      requester: part.requester,
      person: part.person,
      digest,
      expires: store.now() + Math.min(spec.delegated ? ownMs : maxMs, askMs),
      preview,
      view,
      changed,
      warnings,
      question: questionsOf(ask, plan),
      tool: create(PermissionToolContextSchema, { messageId: part.messageId, callId: part.callId }),
    },
    subject,
    id,
  );
}

/** Opens requests and withdraws stale ones in one step. Returns false if the call has changed since it was read. */
export async function openPermissionRequests(
  { limits, permissions, review, store, unattended, notices: sender }: Engine,
  call: Running,
  asks: PermissionRequest[],
  { decisions, facts, shadow, rulesVersion }: Judged & { rulesVersion?: number | undefined },
  stale: readonly AskRecord[],
): Promise<boolean> {
  const isReleased = asks.length > 0 && call.record.part.state.case === "pending" && !call.gate;
  const about = {
    ...{ digest: asks[0]?.digest ?? "", decisions, asks },
    ...(asks.length > 0 && { facts: facts?.(), shadow: shadow?.() }),
  };
  // Where nobody is expected, each request is denied at once.
  const isSent = sender !== undefined && unattended === "wait";
  const notices = isSent ? asks.flatMap((ask) => sender.noticesOf(ask, call.opened.workspace.name)) : [];
  const isOpened = await store.openAsks({
    fence: call.fence,
    version: call.record.version,
    ...(rulesVersion !== undefined && { rulesVersion }),
    asks,
    ...(notices.length > 0 && { notices }),
    withdraw: stale.map(({ request }) => request.id),
    message: "What would run has changed since it was asked.",
    maxOpenAsks: limits.openAsks,
    // Then its asks have expired, or a replica of an older version has settled them.
    ...(isReleased && { dueMs: Math.max(limits.askMs, ...asks.map(({ expires }) => expires - store.now())) }),
    decisions: asks.length === 0 ? [] : [decisionOn(decidedCall(call.record), DecisionKind.ASKED, about)],
  });
  if (isOpened) sender?.opened(notices);
  review.workspaces.add(workspaceRoot(call.opened.workspace.name));
  if (isOpened && unattended === "deny") await permissions.deny(call.record.ref);
  return isOpened;
}

/** Waits until no ask of the call is open, and leaves the call refreshed. */
export async function waitUntilSettled(engine: Engine, call: Running): Promise<void> {
  const wait = await engine.waits.begin(call.record.ref);
  try {
    await refreshCall(engine, call);
    if (call.record.part.permissionIds.length === 0) return;
    await call.observed.step("wait", async () => {
      do {
        await wait.news(call.signal);
        await refreshCall(engine, call);
      } while (call.record.part.permissionIds.length > 0);
    });
  } finally {
    wait.end();
  }
}

/** Throws the end of a call whose ask was not settled by once or always; with `endsCall` it aborts the call, so that its body cannot go on. */
export function checkApproved(
  { permissions }: Engine,
  call: Running,
  request: PermissionRequest,
  { endsCall }: { endsCall: boolean },
): void {
  const asked = call.asks?.find(({ request: { id } }) => id === request.id);
  const isApproved = asked !== undefined && isGranted(asked);
  if (isApproved && permissions.isStillMet(asked)) return;
  const end = isApproved
    ? new CallEnd(ToolErrorReason.DENIED, leftText(request))
    : new CallEnd(...refusalText(request, asked?.settled?.outcome, asked?.settled?.message));
  if (endsCall) call.controller.abort(end);
  throw end;
}

/** True if an approver answered this ask with once. */
export const isOnce = ({ settled }: AskRecord) => settled?.outcome === PermissionOutcome.ONCE;

function isGranted({ request, settled }: AskRecord): boolean {
  if (isQuestion(request)) return settled?.outcome === PermissionOutcome.ONCE && settled.answers.length > 0;
  return settled?.outcome === PermissionOutcome.ONCE || settled?.outcome === PermissionOutcome.ALWAYS;
}

/** Returns the form of the permission request for an ask: the questions of the plan for that of `question`, none for others. */
export function questionsOf({ permission }: Pick<ExpandedAsk, "permission">, { questions }: Plan): Question[] {
  return permission === questionPermission ? (questions ?? []).map((each) => create(QuestionSchema, each)) : [];
}

/** True if only a person may answer the ask, no hook. */
function isForPerson({ permission, isForPersons = false }: UnapprovedAsk): boolean {
  return permission === questionPermission || isForPersons;
}

/** True if the ask was approved. An ask that only another call's grant covers is worth no more than that grant. */
export function isAskApproved(ask: AskRecord, ofCall: readonly AskRecord[]): boolean {
  const { settledWith = "" } = ask.settled ?? {};
  return isGranted(ask) && (settledWith === "" || ofCall.some(({ request }) => request.id === settledWith));
}

function isFor({ permission, patterns }: ExpandedAsk, { request }: AskRecord): boolean {
  return request.permission === permission && areEqual(request.patterns, patterns);
}

function areEqual(a: readonly string[], b: readonly string[]): boolean {
  return a.length === b.length && a.every((text, i) => text === b[i]);
}
