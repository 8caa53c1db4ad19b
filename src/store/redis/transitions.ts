import type { DecisionRecord } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import type { ToolPart } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import type { Escalation } from "../../approval/ports.ts";
import type { AskOpener, CallRecord, CallTransitions, EventLog, LeaseStore, RemoteMark } from "../../call/ports.ts";
import type { CallRef } from "../../core/call-ref.ts";
import { nextEscalation } from "../../core/current-need.ts";
import { noSuchSession } from "../../core/request-error.ts";
import { useOf } from "../grant-uses.ts";
import { checkEnded, escalatedEvent, withdrawalOf } from "../parts.ts";
import { parentEnded, sessionClosed, tooManyAsks, tooManyCalls } from "../refusals.ts";
import { callEnded, encodeWithdrawal } from "./asks.ts";
import { callName } from "./call-records.ts";
import { encodeAsked, encodeEvent, encodePart, encodeSealedJson } from "./events.ts";
import type { StepBytes } from "./link.ts";
import type { RedisAudit } from "./log.ts";
import { encodeNotice, listNotices } from "./notices.ts";
import { fields, number, replyList, text } from "./reply.ts";
import { callStepKeys, parentKeys, type RedisCallContext, settleKeys } from "./steps.ts";

/** The functions of the ports of calls that run one script each, which checks the guards. */
type CallSteps = CallTransitions &
  AskOpener &
  Pick<EventLog, "recordEvents"> &
  Pick<LeaseStore, "claimCall" | "parkCall" | "resumeCall" | "adoptCall" | "restartCall">;

/** Creates the transitions of calls. Each runs one script, which checks the guards. */
export function createRedisTransitions(context: RedisCallContext): CallSteps {
  const { keys, trees, live, records, held, now, runStep } = context;

  /** claim_call, resume_call, adopt_call: takes over a call; undefined if the step refused that. */
  async function takeOver(
    step: "adopt_call" | "claim_call" | "resume_call",
    ref: CallRef,
    values: { owner: string; leaseMs: number; maxAttempts?: number; mark?: RemoteMark; remote?: string },
  ): Promise<CallRecord | undefined> {
    const found = fields(await runStep(step, ref.root, leaseKeys(context, ref), { ...values, name: callName(ref) }));
    if (found === undefined) return undefined;
    held.add(values.owner, ref);
    return records.decode(ref.root, found);
  }

  return {
    /** open_call: lists the tree as live, then accepts the call, or reads the existing one with that id. */
    async openCall(opened) {
      const { ref, spec, owner, leaseMs, maxOpenCalls, unrecordedCalls = 0, maxRepeats } = opened;
      const { root, sessionId, callId } = ref;
      const tree = keys.tree(root);
      const name = callName(ref);
      const pending = encodePart(sessionId, name, opened.part);
      const start = opened.start && encodePart(sessionId, "start", opened.start);
      if (opened.end) checkEnded(opened.end);
      const end = opened.end && encodePart(sessionId, "end", opened.end);
      const reads = [...(opened.reads ?? [])].flat();
      const progress = opened.progress && encodeEvent(sessionId, { case: "progress", value: opened.progress });
      const bytes = { ...pending.bytes, ...start?.bytes, ...end?.bytes, progress };
      const names = {
        ...{ calls: tree.calls(sessionId), open: tree.open(sessionId), leases: tree.leases },
        ...callStepKeys(context, ref),
        ...(opened.delegated && { callOf: tree.callOf }),
        ...(end && { ended: tree.ended }),
        ...(reads.length > 0 && { reads: tree.reads }),
        ...(spec.parent !== undefined && { parent: tree.call(callName({ sessionId, callId: spec.parent })) }),
      };
      const values = {
        ...{
          session: sessionId,
          callId,
          name,
          owner,
          leaseMs,
          maxOpenCalls: maxOpenCalls - unrecordedCalls,
          maxRepeats,
        },
        request: spec.requestDigest,
        spec: encodeSealedJson(spec),
        collectMs: spec.delegated?.collectMs,
        ...(reads.length > 0 && { reads }),
        remote: opened.remote && JSON.stringify(opened.remote),
        ...(opened.queued && { queued: opened.queued, unclaimed: [[root, sessionId, callId]] }),
        ...opened.delegated,
      };

      // Before the start, so that a call is found by every assignment that is given out.
      if (opened.delegated) await trees.pointTo(opened.delegated.assignment, root);
      for (let generation = await live.enter(root); ; ) {
        // From here on a failover that loses work refuses the step.
        opened.checkStore?.();
        const [result, value, last, repeats, begun, waits] = replyList(
          await runStep("open_call", root, names, { ...values, generation }, bytes, opened.decisions),
        );
        switch (text(result)) {
          case "opened": {
            const openedSeq = number(value);
            const started = number(begun);
            const assignment = started === 1 ? opened.delegated?.assignment : undefined;
            const ended = started === 1 && end !== undefined;
            const queued =
              number(waits) === 1 && opened.queued ? { owner: "", queuedUntil: opened.queued.until } : undefined;
            if (assignment !== undefined) await trees.keepPointer(assignment);
            else if (queued) await live.sooner(root, now());
            else if (!ended) held.add(owner, ref);
            const { part: written } = started === 1 ? (end ?? start ?? pending) : pending;
            const part = { ...written, revision: BigInt(number(last)) };
            const version = 1 + started + (ended ? 1 : 0);
            const versions = { version, epoch: 1, attempts: started, repeats: number(repeats) };
            const remote = started === 1 && opened.remote ? { remote: opened.remote } : {};
            const holder = assignment !== undefined ? { owner: "", assignment } : { owner: ended ? "" : owner };
            return {
              record: { ref, part, spec, openedSeq, ...holder, ...versions, ...remote, ...queued },
              created: true,
            };
          }
          case "generation":
            generation = await live.reenter(root, number(value));
            continue;
          case "no session":
            throw noSuchSession(sessionId);
          case "closed":
            throw sessionClosed(sessionId);
          case "no parent":
            throw parentEnded(sessionId, spec.parent ?? "");
          case "full":
            throw tooManyCalls(sessionId, maxOpenCalls, spec.delegated !== undefined);
          default: {
            const record = await records.find(ref);
            if (record !== undefined) return { record, created: false };
          }
        }
      }
    },

    /** open_asks: withdraws some of a call's open asks and opens others. */
    async openAsks(opened) {
      const { fence, version, rulesVersion, withdraw, message, maxOpenAsks } = opened;
      const { ref, owner, epoch } = fence;
      const { root, sessionId } = ref;
      const lease = held.get(owner, ref);
      const { leases, asked, callOf } = keys.tree(root);
      // The pointers are written before the asks, so that every ask is found by its id.
      const pointers = opened.asks.map(({ id }) => trees.pointTo(id, root));
      const [lineage] = await Promise.all([trees.lineage(root, sessionId), ...pointers]);
      const result = await runStep(
        "open_asks",
        root,
        {
          ...callStepKeys(context, ref),
          ...trees.logKeys(root, lineage),
          ...settleKeys(context, root),
          ...{ leases, asked, callOf },
        },
        {
          session: sessionId,
          name: callName(ref),
          ...{ owner, epoch, version, rulesVersion, withdraw, maxOpenAsks, dueMs: opened.dueMs, queued: opened.queued },
          lineage: { [sessionId]: lineage },
          asks: opened.asks.map((ask) => ({ id: ask.id, expires: ask.expires, escalates: nextEscalation(ask) })),
          ...(opened.notices && { notices: opened.notices.map(encodeNotice) }),
          ...(opened.queued && { unclaimed: [[root, sessionId, ref.callId]] }),
        },
        {
          withdrawn: encodeWithdrawal(ref, message, now()),
          progress: opened.progress && encodeEvent(sessionId, { case: "progress", value: opened.progress }),
          ...Object.fromEntries(
            opened.asks.map((value) => [
              `asked ${value.id}`,
              encodeEvent(sessionId, { case: "permissionAsked", value }),
            ]),
          ),
        },
        opened.decisions,
      );
      if (text(result) === "full") throw tooManyAsks(root, maxOpenAsks);
      if (text(result) !== "opened") return false;
      const listed = listNotices(context, opened.notices ?? []);
      await Promise.all([listed, ...opened.asks.map(({ id }) => trees.keepPointer(id))]);
      if (opened.dueMs !== undefined) held.drop(owner, lease);
      const dueAt = opened.dueMs === undefined ? [] : [now() + opened.dueMs];
      for (const notice of opened.notices?.filter(({ dead }) => dead === "") ?? [])
        dueAt.push(notice.owner === "" ? notice.dueAt : now() + notice.leaseMs);
      const ends = opened.asks.map((ask) => nextEscalation(ask) ?? ask.expires);
      await live.sooner(root, Math.min(...ends, ...dueAt));
      return true;
    },

    /** rebind_call: replaces the request data of a call that waits without an owner, and withdraws its open asks. */
    async rebindCall({ ref, version, spec, message }) {
      const { root, sessionId } = ref;
      const { leases } = keys.tree(root);
      const lineage = await trees.lineage(root, sessionId);
      const result = await runStep(
        "rebind_call",
        root,
        { ...callStepKeys(context, ref), ...trees.logKeys(root, lineage), ...settleKeys(context, root), leases },
        {
          ...{ session: sessionId, name: callName(ref), version, spec: encodeSealedJson(spec) },
          lineage: { [sessionId]: lineage },
        },
        { withdrawn: encodeWithdrawal(ref, message, now()) },
      );
      if (text(result) !== "rebound") return false;
      await live.sooner(root, now() + (spec.delegated?.collectMs ?? 0));
      return true;
    },

    /** prepare_call: records once that the before-hooks have run. */
    async prepareCall({ fence, part }) {
      const { ref, owner, epoch } = fence;
      const name = callName(ref);
      const bytes = part && encodePart(ref.sessionId, name, part).bytes;
      const values = { session: ref.sessionId, name, owner, epoch };
      const result = await runStep("prepare_call", ref.root, callStepKeys(context, ref), values, bytes);
      return text(result) === "prepared";
    },

    /** note_call: replaces the hook state or memo of an open call. */
    async noteCall({ fence, hooked, memo, decisions }) {
      const { ref, owner, epoch } = fence;
      const values = { name: callName(ref), owner, epoch, hooked, memo };
      const result = await runStep("note_call", ref.root, callStepKeys(context, ref), values, {}, decisions);
      return text(result) === "noted";
    },

    /** start_call: writes the start mark. */
    async startCall(started) {
      const { ref, owner, epoch } = started.fence;
      const lease = held.get(owner, ref);
      const { version, rulesVersion, grantIds = [], counted, delegated, remote } = started;
      const { grants, used, uses, leases, callOf } = keys.tree(ref.root);
      const name = callName(ref);
      if (delegated) await trees.pointTo(delegated.assignment, ref.root);
      const { bytes } = encodePart(ref.sessionId, name, started.part);
      const host = { ...delegated, remote: remote && JSON.stringify(remote) };
      const counts = counted?.length ? { counted, use: useOf(ref) } : {};
      const values = {
        session: ref.sessionId,
        name,
        owner,
        epoch,
        version,
        rulesVersion,
        grantIds,
        ...counts,
        ...host,
      };
      const names = { ...callStepKeys(context, ref), grants, used, uses, leases, ...(delegated && { callOf }) };
      const result = text(await runStep("start_call", ref.root, names, values, bytes, started.decisions));
      if (delegated && result === "started") {
        held.drop(owner, lease);
        await trees.keepPointer(delegated.assignment);
      }
      return result === "started" || result === "retry" ? result : "fenced";
    },

    /** record_events: appends progress and output of a running call. */
    async recordEvents(fence, events) {
      const { ref, owner, epoch } = fence;
      const bytes: StepBytes = {};
      for (const [index, event] of events.entries()) {
        const logged =
          event.$typeName === "opencode.tool.v1.ToolProgress"
            ? { case: "progress" as const, value: event }
            : { case: "output" as const, value: event };
        bytes[`event ${index + 1}`] = encodeEvent(ref.sessionId, logged);
      }
      const values = { session: ref.sessionId, name: callName(ref), owner, epoch, count: events.length };
      const result = await runStep("record_events", ref.root, callStepKeys(context, ref), values, bytes);
      return text(result) === "recorded";
    },

    /** finish_call: writes the terminal part, withdraws the call's open asks, and ends its children in the same way. */
    async finishCall({ ref, guard, part, decisions, children = [] }) {
      const { root, sessionId, callId } = ref;
      const tree = keys.tree(root);
      const lineage = await trees.lineage(root, sessionId);
      const ended = encodeEnd(context, ref, part, callEnded);
      const endedChildren = children.map((child) =>
        encodeEnd(context, child.ref, child.part, withdrawalOf(child.part)),
      );
      const all = [ended, ...endedChildren];
      const guards = "fence" in guard ? { owner: guard.fence.owner, epoch: guard.fence.epoch } : guard;
      const [result, revision] = replyList(
        await runStep(
          "finish_call",
          root,
          {
            ...trees.logKeys(root, lineage),
            ...{ leases: tree.leases, ended: tree.ended, ...settleKeys(context, root) },
            [`open ${sessionId}`]: tree.open(sessionId),
            ...Object.assign({}, ...all.map(({ names }) => names)),
          },
          {
            ...{ session: sessionId, callId, name: callName(ref), lineage: { [sessionId]: lineage }, ...guards },
            children: children.map(({ ref, version, part: { parentCallId } }) => ({
              ...{ name: callName(ref), callId: ref.callId, version },
              parent: callName({ sessionId, callId: parentCallId }),
            })),
          },
          Object.assign({}, ...all.map(({ bytes }) => bytes)),
          decisions,
        ),
      );
      if (text(result) === "open children") return "open children";
      if (text(result) !== "finished") return undefined;
      for (const each of [ref, ...children.map((child) => child.ref)]) held.ended(each);
      return { ...ended.part, revision: BigInt(number(revision)) };
    },

    /** request_cancel: stores the first cancellation message and notifies the owner. */
    async requestCancel(ref, message, part) {
      const name = callName(ref);
      const bytes = part && encodePart(ref.sessionId, name, part).bytes;
      const values = { session: ref.sessionId, name, message };
      await runStep("request_cancel", ref.root, callStepKeys(context, ref), values, bytes);
    },

    /** note_report: adds one late report of a call that has ended to the audit. */
    async noteReport(ref, decisions) {
      const values = { name: callName(ref) };
      const result = await runStep("note_report", ref.root, callStepKeys(context, ref), values, {}, decisions);
      return text(result) === "noted";
    },

    /** park_call: ends the lease of a started call that waits for open children, or is to be resumed at once. */
    async parkCall({ ref, owner, epoch }, dueMs) {
      const lease = held.get(owner, ref);
      const names = leaseKeys(context, ref);
      const result = await runStep("park_call", ref.root, names, { name: callName(ref), owner, epoch, dueMs });
      if (text(result) !== "parked") return false;
      held.drop(owner, lease);
      await live.sooner(ref.root, now() + dueMs);
      return true;
    },

    /** restart_call: takes back the start of a call whose body was not entered. */
    async restartCall(ref, mark, queued) {
      const names = leaseKeys(context, ref);
      const result = await runStep("restart_call", ref.root, names, { name: callName(ref), mark, queued });
      if (text(result) !== "restarted") return false;
      await live.sooner(ref.root, now());
      return true;
    },

    claimCall: (ref, owner, leaseMs, maxAttempts = 1) => takeOver("claim_call", ref, { owner, leaseMs, maxAttempts }),
    resumeCall: (ref, owner, leaseMs) => takeOver("resume_call", ref, { owner, leaseMs }),
    adoptCall: (ref, mark, owner, leaseMs) =>
      takeOver("adopt_call", ref, { owner, leaseMs, mark, remote: JSON.stringify(mark) }),
  };
}

/** escalate_ask: takes the steps of an open ask that are due. */
export async function runEscalation(context: RedisCallContext, escalation: Escalation): Promise<boolean> {
  const { keys, trees, live, now, runStep } = context;
  const { call: ref, version, request, notices, decisions } = escalation;
  const { root, sessionId } = ref;
  const { asked, deadlines, notices: written, noticeDue, notified } = keys.tree(root);
  const lineage = await trees.lineage(root, sessionId);
  const result = await runStep(
    "escalate_ask",
    root,
    {
      ...callStepKeys(context, ref),
      ...trees.logKeys(root, lineage),
      ...{ asked, deadlines, notices: written, noticeDue, notified },
    },
    {
      ...{ session: sessionId, name: callName(ref), ask: request.id, version, next: nextEscalation(request) },
      ...{ lineage: { [sessionId]: lineage }, notices: notices.map(encodeNotice) },
    },
    {
      asked: encodeAsked(request),
      escalated: encodeEvent(sessionId, { case: "permissionEscalated", value: escalatedEvent(request) }),
    },
    decisions,
  );
  if (text(result) !== "escalated") return false;
  await listNotices(context, notices);
  await live.sooner(root, nextEscalation(request) ?? now());
  return true;
}

/** Encodes the end of a call, with the message of the asks that are withdrawn, and names the keys that it needs. */
function encodeEnd(context: RedisCallContext, ref: CallRef, given: ToolPart, withdrawal: string) {
  checkEnded(given);
  const name = callName(ref);
  const { part, bytes } = encodePart(ref.sessionId, name, given);
  return {
    part,
    bytes: { ...bytes, [`withdrawn ${name}`]: encodeWithdrawal(ref, withdrawal, context.now()) },
    names: { ...callStepKeys(context, ref), ...parentKeys(context, ref, given) },
  };
}

/** Returns the keys of a step that changes the lease of a call. */
const leaseKeys = (context: RedisCallContext, ref: CallRef) => ({
  ...callStepKeys(context, ref),
  leases: context.keys.tree(ref.root).leases,
});

/** record_decisions: adds decisions to the audit of a tree, or of a root without one, which is listed as that of a removed tree. */
export async function runRecordDecisions(
  { audit, runStep, trees }: RedisCallContext & { audit: Pick<RedisAudit, "listRemoved"> },
  root: string,
  decisions: readonly DecisionRecord[],
): Promise<void> {
  const isTree = await trees.find(root, async (found) => found);
  if (!isTree) await audit.listRemoved(root);
  await runStep("record_decisions", root, {}, {}, {}, decisions);
}
