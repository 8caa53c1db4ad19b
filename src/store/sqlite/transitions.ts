import type { AskOpener, CallTransitions, EventLog, LeaseStore, RemoteMark, SessionStore } from "../../call/ports.ts";
import type { CallRef } from "../../core/call-ref.ts";
import { checkEnded, sealed, withdrawalOf } from "../parts.ts";
import { parentEnded, sessionClosed, tooManyAsks, tooManyCalls } from "../refusals.ts";
import { decodeSqliteSpec } from "./call-records.ts";
import {
  endCallRow,
  hasRulesVersion,
  raiseCallVersion,
  type SqliteTables,
  startAtHost,
  writePart,
} from "./call-statements.ts";
import type { InStep } from "./commit.ts";
import type { SessionHead } from "./sessions.ts";

/** The functions of the ports of calls that are one transition each. */
type CallSteps = CallTransitions &
  AskOpener &
  Pick<EventLog, "recordEvents"> &
  Pick<SessionStore, "closeSession"> &
  Pick<LeaseStore, "claimCall" | "parkCall" | "resumeCall" | "adoptCall" | "restartCall">;

/** Creates the transitions of calls. Each checks its guards, then writes. */
export function createSqliteTransitions(tables: SqliteTables): InStep<CallSteps> {
  const { sessions, log, openCalls, records, asks, notices, audit, grants, callSql } = tables;
  return {
    /** open_asks: withdraws some of a call's open asks and opens others. */
    openAsks(step, opened) {
      const call = openCalls.fenced(opened.fence);
      if (call === undefined || call.version !== opened.version) return false;
      if (!hasRulesVersion(tables, call, opened.rulesVersion)) return false;
      asks.withdraw(step, call, opened.message, opened.withdraw);
      if (asks.countOpen(call.ref.root) + opened.asks.length > opened.maxOpenAsks) {
        throw tooManyAsks(call.ref.root, opened.maxOpenAsks);
      }
      for (const request of opened.asks) asks.open(step, call, request);
      for (const notice of opened.notices ?? []) notices.open(step, notice);
      if (opened.asks.length > 0) sessions.raiseAsksVersion(call.ref.root);
      if (opened.progress) log.append(step, call.ref.sessionId, { case: "progress", value: opened.progress });
      const queued = opened.asks.length > 0 ? undefined : (call.queued ?? opened.queued);
      if (queued !== call.queued) callSql.queue.run(queued?.until ?? null, call.ordinal);
      const waits = opened.dueMs === undefined ? {} : { owner: "", leaseUntil: step.now + opened.dueMs };
      raiseCallVersion(tables, step, call, { asked: true, queued, ...waits });
      audit.append(step, call.ref.root, opened.decisions);
      return true;
    },

    /** rebind_call: replaces the request data of a call that waits without an owner, and withdraws its open asks. */
    rebindCall(step, { ref, version, spec, message }) {
      const call = openCalls.get(ref);
      if (call === undefined || call.version !== version || call.started) return false;
      if (call.owner !== "" && call.leaseUntil > step.now) return false;
      asks.withdraw(step, call, message);
      records.rebind(call.ordinal, spec);
      raiseCallVersion(tables, step, call, { owner: "", leaseUntil: step.now + call.collectMs, settled: step.now });
      return true;
    },

    /** open_call: checks the guards, then inserts the call; starts and ends it, or lets it wait for a worker, in the same step if it may. */
    openCall(step, opened) {
      const { spec, owner, leaseMs, maxOpenCalls, unrecordedCalls = 0 } = opened;
      const { sessionId, callId } = opened.ref;
      const head = sessions.need(sessionId);
      const existing = records.find(head, callId);
      if (existing !== undefined) return { record: existing, created: false };
      if (head.closed > 0) throw sessionClosed(sessionId);
      const { parent = "" } = spec;
      if (parent !== "" && !openCalls.get({ sessionId, callId: parent })) throw parentEnded(sessionId, parent);
      tables.checkSpace();
      const isDelegated = spec.delegated !== undefined;
      if (openCalls.hasAtLeast(sessionId, maxOpenCalls - unrecordedCalls, isDelegated))
        throw tooManyCalls(sessionId, maxOpenCalls, isDelegated);

      const ref: CallRef = { root: head.root, sessionId, callId };
      const pending = writePart(step, log, sessionId, opened.part);
      const repeats = repeatsIn(tables, head, spec.requestDigest);
      const mayStart = repeats <= (opened.maxRepeats ?? repeats);
      const start = mayStart ? opened.start : undefined;
      const queued = mayStart ? opened.queued : undefined;
      const end = start && opened.end;
      const running = start ? writePart(step, log, sessionId, start) : pending;
      if (end) checkEnded(end);
      const { part, snapshot } = end ? writePart(step, log, sessionId, end) : running;
      const started = start === undefined ? 0 : 1;
      const remote = start && opened.remote;
      const openedSeq = Number(pending.part.revision);
      const versions = { version: 1 + started + (end ? 1 : 0), epoch: 1 };
      const ordinal = Number(
        callSql.insert.run(
          head.ordinal,
          callId,
          openedSeq,
          started,
          versions.version,
          started,
          repeats,
          ...sealed(JSON.stringify(spec)),
          ...sealed(snapshot),
          remote ? JSON.stringify(remote) : null,
          end ? step.now : null,
        ).lastInsertRowid,
      );
      // Writing the part has registered the head for rollback, which also drops this.
      head.latest = { request: spec.requestDigest, repeats };
      if (started === 1) {
        audit.append(step, ref.root, opened.decisions);
        for (const [path, sha256] of opened.reads ?? []) sessions.recordRead(ref.root, path, sha256);
      }
      const result = { ref, part, spec, openedSeq, ...versions, attempts: started, repeats, ...(remote && { remote }) };
      if (end) return { record: { ...result, owner: "" }, created: true };
      if (queued) callSql.queue.run(queued.until, ordinal);
      if (queued && opened.progress) log.append(step, sessionId, { case: "progress", value: opened.progress });
      const lease = queued ? { owner: "", leaseUntil: step.now } : { owner, leaseUntil: step.now + leaseMs };
      const collectMs = spec.delegated?.collectMs ?? 0;
      const delegated = started === 1 ? opened.delegated : undefined;
      const held = delegated ? startAtHost(tables, step, ordinal, delegated) : lease;
      openCalls.set(step, {
        ordinal,
        ref,
        ...versions,
        started: started === 1,
        asked: false,
        ...held,
        settled: 0,
        collectMs,
        request: spec.delegated ? spec.requestDigest : "",
        parent,
        remote,
        queued,
      });
      const assigned = delegated && { assignment: delegated.assignment };
      const wait = queued && { queuedUntil: queued.until };
      return { record: { ...result, owner: held.owner, ...assigned, ...wait }, created: true };
    },

    /** prepare_call: records once that the before-hooks have run. */
    prepareCall(step, { fence, part }) {
      const call = openCalls.fenced(fence);
      if (call === undefined || call.started || callSql.prepare.run(call.ordinal).changes === 0) return false;
      if (part)
        callSql.setSnapshot.run(...sealed(writePart(step, log, call.ref.sessionId, part).snapshot), call.ordinal);
      raiseCallVersion(tables, step, call);
      return true;
    },

    /** note_call: replaces the hook state or memo of an open call. */
    noteCall(step, { fence, hooked, memo, decisions }) {
      const call = openCalls.fenced(fence);
      if (call === undefined) return false;
      if (hooked !== undefined || memo !== undefined) callSql.note.run(hooked ?? null, memo ?? null, call.ordinal);
      audit.append(step, call.ref.root, decisions);
      return true;
    },

    /** start_call: writes the start mark. */
    startCall(step, started) {
      const call = openCalls.fenced(started.fence);
      if (call === undefined || call.started || call.leaseUntil <= step.now) return "fenced";
      if (call.version !== started.version) return "retry";
      if (!hasRulesVersion(tables, call, started.rulesVersion)) return "retry";
      if (!grants.take(step, started.counted?.map(({ id }) => id) ?? [], call.ref)) return "retry";

      const version = call.version + 1;
      const { snapshot } = writePart(step, log, call.ref.sessionId, started.part);
      const { delegated, remote } = started;
      callSql.start.run(version, ...sealed(snapshot), remote ? JSON.stringify(remote) : null, call.ordinal);
      const runsElsewhere = delegated ? startAtHost(tables, step, call.ordinal, delegated) : {};
      openCalls.set(step, { ...call, version, started: true, remote, queued: undefined, ...runsElsewhere });
      grants.use(step, started.grantIds ?? []);
      audit.append(step, call.ref.root, started.decisions);
      return "started";
    },

    /** record_events: appends progress and output of a running call. */
    recordEvents(step, fence, events) {
      const call = openCalls.fenced(fence);
      if (call === undefined || !call.started) return false;
      for (const event of events) {
        const isOutput = event.$typeName === "opencode.tool.v1.ToolOutput";
        log.append(
          step,
          call.ref.sessionId,
          isOutput ? { case: "output", value: event } : { case: "progress", value: event },
        );
      }
      return true;
    },

    /** finish_call: writes the terminal part, withdraws the call's open asks, and ends its children in the same way. */
    finishCall(step, finished) {
      const { ref, guard, part, decisions, children = [] } = finished;
      const call = "fence" in guard ? openCalls.fenced(guard.fence) : openCalls.get(ref);
      if (call === undefined || ("version" in guard && call.version !== guard.version)) return undefined;
      const open = new Map(openCalls.descendants(ref).map((row) => [row.ref.callId, row]));
      const rows = children.map((child) => ({ ...child, row: open.get(child.ref.callId) }));
      if (rows.length !== open.size || rows.some(({ row, version }) => row?.version !== version))
        return "open children";
      // The youngest first, so that each ends before its parent.
      for (const { row, part } of rows.toReversed()) if (row) endCallRow(tables, step, row, part, withdrawalOf(part));
      audit.append(step, call.ref.root, decisions);
      return endCallRow(tables, step, call, part);
    },

    /** request_cancel: stores the first cancellation message and notifies the owner. */
    requestCancel(step, ref, message, part) {
      const call = openCalls.get(ref);
      if (call === undefined || callSql.cancel.run(message, call.ordinal).changes === 0) return;
      if (part) callSql.setSnapshot.run(...sealed(writePart(step, log, ref.sessionId, part).snapshot), call.ordinal);
      raiseCallVersion(tables, step, call);
      step.notify(ref.sessionId, log.nextSeq(ref.sessionId));
    },

    /** note_report: adds one late report of a call that has ended to the audit. */
    noteReport(step, ref, decisions) {
      if (callSql.report.run(ref.callId, ref.sessionId).changes === 0) return false;
      audit.append(step, ref.root, decisions);
      return true;
    },

    /** close_session: returns the open calls of the session and its descendants. */
    closeSession(step, id) {
      return sessions.close(step, id).flatMap((sessionId) => openCalls.inSession(sessionId).map((call) => call.ref));
    },

    /** claim_call: takes over a call without an owner or a live lease whose body may be entered once more. */
    claimCall(step, ref, owner, leaseMs, maxAttempts = 1) {
      const call = openCalls.get(ref);
      if (call === undefined || (call.owner !== "" && call.leaseUntil > step.now)) return undefined;
      if (call.remote && call.leaseUntil + call.remote.resumeMs > step.now) return undefined;
      if ((records.get(ref.sessionId, ref.callId)?.attempts ?? 0) >= maxAttempts) return undefined;
      const epoch = call.epoch + 1;
      callSql.claim.run(epoch, call.ordinal);
      raiseCallVersion(tables, step, call, {
        ...{ epoch, owner, started: false, leaseUntil: step.now + leaseMs },
        remote: undefined,
      });
      return records.get(ref.sessionId, ref.callId);
    },

    /** park_call: ends the lease of a started call that waits for open children, or is to be resumed at once. */
    parkCall(step, fence, dueMs) {
      const call = openCalls.fenced(fence);
      if (!call?.started || (dueMs > 0 && openCalls.descendants(call.ref).length === 0)) return false;
      raiseCallVersion(tables, step, call, { owner: "", leaseUntil: step.now + dueMs });
      return true;
    },

    /** resume_call: takes over a started call without an owner or a live lease; its start mark stays. */
    resumeCall(step, ref, owner, leaseMs) {
      const call = openCalls.get(ref);
      if (!call?.started || (call.owner !== "" && call.leaseUntil > step.now)) return undefined;
      const epoch = call.epoch + 1;
      callSql.resume.run(epoch, call.ordinal);
      raiseCallVersion(tables, step, call, { epoch, owner, leaseUntil: step.now + leaseMs });
      return records.get(ref.sessionId, ref.callId);
    },

    /** adopt_call: takes over a started call whose worker has a higher connection, which is stored. */
    adoptCall(step, ref, mark, owner, leaseMs) {
      const call = openCalls.get(ref);
      if (!call?.remote || !isSameRun(call.remote, mark) || mark.connection <= call.remote.connection) return undefined;
      const epoch = call.epoch + 1;
      callSql.adopt.run(epoch, JSON.stringify(mark), call.ordinal);
      raiseCallVersion(tables, step, call, { epoch, owner, leaseUntil: step.now + leaseMs, remote: mark });
      return records.get(ref.sessionId, ref.callId);
    },

    /** restart_call: takes back the start of a call whose body was not entered. */
    restartCall(step, ref, mark, queued) {
      const call = openCalls.get(ref);
      if (!call?.remote || !isSameRun(call.remote, mark) || mark.connection < call.remote.connection) return false;
      const epoch = call.epoch + 1;
      callSql.restart.run(epoch, queued.until, call.ordinal);
      const lease = { owner: "", leaseUntil: step.now };
      raiseCallVersion(tables, step, call, { epoch, started: false, ...lease, remote: undefined, queued });
      return true;
    },
  };
}

/** Predicts `repeats` of the session's next call, if it is this request; see the port. */
export function repeatsOfNext(tables: SqliteTables, sessionId: string, requestDigest: string): number {
  const head = tables.sessions.find(sessionId);
  return head === undefined ? 0 : repeatsIn(tables, head, requestDigest);
}

function repeatsIn(tables: SqliteTables, head: SessionHead, requestDigest: string): number {
  head.latest ??= loadLatest(tables, head);
  return head.latest.request === requestDigest ? head.latest.repeats + 1 : 0;
}

function loadLatest({ callSql }: SqliteTables, { ordinal }: SessionHead): { request: string; repeats: number } {
  const row = callSql.latest.get(ordinal);
  return row === undefined
    ? { request: "", repeats: 0 }
    : { request: decodeSqliteSpec(row).requestDigest, repeats: row.repeats };
}

/** Compares a mark with the stored one, but for the connection. */
const isSameRun = (stored: RemoteMark, { assignment, instance, principal }: RemoteMark) =>
  stored.assignment === assignment && stored.instance === instance && stored.principal === principal;
