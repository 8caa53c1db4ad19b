import { create } from "@bufbuild/protobuf";
import {
  DecisionKind,
  type DecisionRecord,
  PermissionAction,
  PermissionDecisionSchema,
  PermissionOutcome,
} from "../../gen/opencode/tool/v1/permission_pb.ts";
import {
  type PermissionRequest,
  PermissionToolContextSchema,
  type Preview,
  ToolErrorReason,
} from "../../gen/opencode/tool/v1/tool_pb.ts";
import { decisionOn } from "../approval/decisions.ts";
import type { UnapprovedAsk, Verdict } from "../approval/judge-asks.ts";
import type { Permissions } from "../approval/permissions.ts";
import type { AskRecord } from "../approval/ports.ts";
import { refusalText } from "../approval/refusal-text.ts";
import type { Ask } from "../core/ask.ts";
import { newId } from "../core/ids.ts";
import type { ExpandedAsk } from "../policy/model.ts";
import type { Subject } from "../policy/subject.ts";
import type { Plan, Tool } from "../tool/tool.ts";
import { allowed, decidedCall } from "./decided.ts";
import { CallEnd, CallGone, denied } from "./ends.ts";
import type { createKept } from "./kept.ts";
import type { Inspected, Judged, Planning } from "./planning.ts";
import type { CallRecord, CallStore, Fence } from "./ports.ts";
import { type Running, subjectOf } from "./running.ts";
import { inputOf, isTerminal } from "./state.ts";
import { createWaits } from "./waits.ts";

/** What a call asks of people, and how it waits for them. */
export function createAsking({
  store,
  permissions,
  asksOf,
  planning,
  kept,
  limits,
  unattended,
}: {
  store: CallStore;
  permissions: Permissions;
  asksOf(call: CallRecord["ref"]): Promise<AskRecord[]>;
  planning: Planning;
  kept: ReturnType<typeof createKept>;
  limits: { askMs: number; openAsks: number };
  unattended: "wait" | "deny";
}) {
  const waits = createWaits(store);

  /** 6. The asks by which a person approved exactly this, and the questions for which there is none. */
  async function answersTo(call: Running, tool: Tool, { plan, verdict }: Judged): Promise<CallAnswers> {
    const digest = await planning.digestOf(tool, inputOf(call.record.part), plan, call.opened);
    const asks = call.asks ?? (await asksOf(call.record.ref));
    const given = asks.filter((ask) => ask.request.digest === digest && isApproved(ask, asks));
    const missing = verdict.unapproved.filter(
      (question) => !call.hooks.allows(digest, question) && !given.some((ask) => isFor(question, ask)),
    );
    return { digest, asks, approved: given.map(({ request }) => request), missing };
  }

  /** Opens what is missing, and withdraws what an earlier plan asked. */
  async function askFor(
    call: Running,
    judged: Judged,
    { digest, asks, missing }: CallAnswers,
    preview: Inspected["preview"],
    subject: Subject,
  ): Promise<void> {
    if (call.record.attempts > 0) {
      // There is no ask after a start mark, also not for what is about to be repeated.
      throw new CallEnd(
        ToolErrorReason.EXECUTOR_LOST,
        "The executor stopped responding while the tool ran. It is not run again, as it would have to be asked for again: repeat the call.",
      );
    }
    const open = asks.filter(({ settled }) => !settled);
    const isOpen = (question: ExpandedAsk) => open.some((ask) => ask.request.digest === digest && isFor(question, ask));
    const isStale = (ask: AskRecord) =>
      ask.request.digest !== digest || !missing.some((question) => isFor(question, ask));
    const stale = open.filter(isStale);
    const unopened = missing.filter((question) => !isOpen(question));
    const unasked = await unlessHooksDecide(call, unopened, judged.plan, digest);
    if (stale.length > 0 || unasked.length > 0) {
      const shown = preview && (await kept.preview(call, preview()));
      const requests = unasked.map((question) => requestFor(call, { ...judged, question }, shown, subject, digest));
      await openAsks(call, requests, judged.verdict, stale);
    }
  }

  /** An ask in the middle of the body: it dies with this replica, and so does the call. */
  async function askInBody(call: Running, tool: Tool, approved: Plan, ask: Ask): Promise<void> {
    const subject = subjectOf(call, tool);
    const verdict = await permissions.decide([ask], subject);
    if (verdict.action === PermissionAction.DENY) throw denied(verdict);
    const record = (by?: string) => note(call.fence, { decisions: [allowed(call.record, { verdict }, [], by)] });
    if (verdict.action === PermissionAction.ALLOW) return await record();
    if (approved.asks.some(({ permission, wholeCall }) => wholeCall && permission === ask.permission))
      return await record("the call was allowed as a whole");
    const plan: Plan = { title: "", asks: [ask], ...(ask.cwd !== undefined && { cwd: ask.cwd }) };
    const digest = await planning.digestOf(tool, inputOf(call.record.part), plan, call.opened);
    const unasked = await unlessHooksDecide(call, verdict.unapproved, plan, digest);
    if (unasked.length === 0) return await record();
    const requests = unasked.map((question) =>
      requestFor(call, { question, plan, verdict }, undefined, subject, digest),
    );
    do await refresh(call);
    while (!(await openAsks(call, requests, { ...verdict, rulesVersion: undefined }, [])));
    await settledAll(call);
    for (const request of requests) {
      const asked = call.asks?.find(({ request: { id } }) => id === request.id);
      if (asked && isSettledWell(asked)) continue;
      const end = new CallEnd(...refusalText(request, asked?.settled?.outcome, asked?.settled?.message));
      // A refusal ends the call, also if the tool would rather go on.
      call.controller.abort(end);
      throw end;
    }
  }

  /** The questions that hooks leave to people. One that a hook denies ends the call. */
  async function unlessHooksDecide(
    call: Running,
    questions: readonly ExpandedAsk[],
    plan: Plan,
    digest: string,
  ): Promise<ExpandedAsk[]> {
    const left: ExpandedAsk[] = [];
    for (const question of questions) {
      const decided = await call.hooks.decide(digest, question, plan);
      if (decided === "ask") left.push(question);
      if (decided !== "deny") continue;
      const { permission, patterns } = question;
      const by = { permission, action: PermissionAction.DENY, reason: "a plugin denies it" };
      const decisions = patterns.map((pattern) => create(PermissionDecisionSchema, { ...by, pattern }));
      throw denied({ decisions });
    }
    return left;
  }

  function requestFor(
    call: Running,
    { question, plan, verdict }: Pick<Judged, "plan" | "verdict"> & { question: ExpandedAsk },
    preview: Preview | undefined,
    subject: Subject,
    digest: string,
  ): PermissionRequest {
    const { part } = call.record;
    const metadata = plan.asks.find(({ permission }) => permission === question.permission)?.metadata;
    return permissions.request(
      { ...question, ...(metadata && { metadata }) },
      verdict.decisions,
      {
        sessionId: part.sessionId,
        agent: part.agent,
        digest,
        expires: store.now() + limits.askMs,
        preview,
        tool: create(PermissionToolContextSchema, { messageId: part.messageId, callId: part.callId }),
      },
      subject,
      newId("per", store.now()),
    );
  }

  /** Opens asks, and withdraws those of an earlier plan. False if the call has changed since it was read. */
  async function openAsks(
    call: Running,
    asks: PermissionRequest[],
    { decisions, rulesVersion }: Pick<Verdict, "decisions"> & { rulesVersion?: number | undefined },
    stale: AskRecord[],
  ): Promise<boolean> {
    const permissionIds = asks.map(({ id }) => id);
    const about = { digest: asks[0]?.digest ?? "", decisions, permissionIds };

    const opened = await store.openAsks({
      fence: call.fence,
      version: call.record.version,
      ...(rulesVersion !== undefined && { rulesVersion }),
      asks,
      withdraw: stale.map(({ request }) => request.id),
      message: "What would run has changed since it was asked.",
      maxOpenAsks: limits.openAsks,
      decisions: asks.length === 0 ? [] : [decisionOn(decidedCall(call.record), DecisionKind.ASKED, about)],
    });
    if (opened && unattended === "deny") await permissions.deny(call.record.ref);
    return opened;
  }

  /** Writes down what changes no state. */
  async function note(fence: Fence, noted: { hooked?: string; decisions?: readonly DecisionRecord[] }): Promise<void> {
    if (!(await store.noteCall({ fence, ...noted }))) throw new CallGone();
  }

  /** Waits until no ask of the call is open. */
  async function settledAll(call: Running): Promise<void> {
    const wait = await waits.begin(call.record.ref);
    try {
      await refresh(call);
      if (call.record.part.permissionIds.length === 0) return;
      await call.observed.step("wait", async () => {
        do {
          await wait.news(call.signal);
          await refresh(call);
        } while (call.record.part.permissionIds.length > 0);
      });
    } finally {
      wait.end();
    }
  }

  /** Reads the call and its asks again; throws if it has ended or is no longer ours. */
  async function refresh(call: Running): Promise<void> {
    const now = await store.getCallWithAsks(call.record.ref);
    if (now) Object.assign(call, now);
    if (!now || isTerminal(now.record.part)) throw new CallGone();
    if (now.record.epoch !== call.fence.epoch || now.record.owner !== call.fence.owner) throw new CallGone();
  }

  return { answersTo, askFor, askInBody, note, settledAll, refresh };
}

/** What people have said to a plan, named by its digest. */
export interface CallAnswers {
  digest: string;
  /** All asks of the call. */
  asks: readonly AskRecord[];
  approved: readonly PermissionRequest[];
  missing: UnapprovedAsk[];
}

/** Of a plan for which nobody needs to be asked. */
export const nothingAsked: CallAnswers = { digest: "", asks: [], approved: [], missing: [] };

function isSettledWell({ settled }: AskRecord): boolean {
  return settled?.outcome === PermissionOutcome.ONCE || settled?.outcome === PermissionOutcome.ALWAYS;
}

/** Whether a person allowed just this. */
export const isOnce = ({ settled }: AskRecord) => settled?.outcome === PermissionOutcome.ONCE;

function isFor({ permission, patterns }: ExpandedAsk, { request }: AskRecord): boolean {
  return request.permission === permission && equal(request.patterns, patterns);
}

/** Whether a person approved an ask. One that only another call's grant covers stands and falls with that grant. */
function isApproved(ask: AskRecord, ofCall: readonly AskRecord[]): boolean {
  const { settledWith = "" } = ask.settled ?? {};
  return isSettledWell(ask) && (settledWith === "" || ofCall.some(({ request }) => request.id === settledWith));
}

function equal(a: readonly string[], b: readonly string[]): boolean {
  return a.length === b.length && a.every((text, i) => text === b[i]);
}
