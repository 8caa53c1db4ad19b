import type { DatabaseSync } from "node:sqlite";
import type { ToolPart } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import type { CallRecord, CallStore } from "../../call/ports.ts";
import type { CallRef } from "../../core/call-ref.ts";
import { checkEnded } from "../parts.ts";
import { sessionClosed, tooManyAsks, tooManyCalls } from "../refusals.ts";
import type { SqliteAsks } from "./asks.ts";
import type { SqliteAudit } from "./audit.ts";
import { decodeSqliteSpec, type SqliteCallRecords } from "./call-records.ts";
import type { Step } from "./commit.ts";
import { statement } from "./database.ts";
import type { SqliteGrants } from "./grants.ts";
import type { SqliteLog } from "./log.ts";
import type { OpenCallRow, OpenCallTable } from "./open-calls.ts";
import { writePart } from "./parts.ts";
import type { SessionHead, SqliteSessions } from "./sessions.ts";

/** The transitions of a call. */
export type SqliteCalls = ReturnType<typeof createSqliteCalls>;

/** Each function below is one transition, run inside a step: it checks its guards, then writes. */
export function createSqliteCalls(options: {
  db: DatabaseSync;
  sessions: SqliteSessions;
  log: SqliteLog;
  openCalls: OpenCallTable;
  records: SqliteCallRecords;
  asks: SqliteAsks;
  grants: SqliteGrants;
  audit: SqliteAudit;
}) {
  const { sessions, log, openCalls, records, asks, grants, audit } = options;
  const sql = prepare(options.db);

  /** Raises the version of a call, so that what was computed from an earlier one is computed again. */
  function raiseVersion(step: Step, call: OpenCallRow, change: Partial<OpenCallRow> = {}): void {
    const version = call.version + 1;
    sql.setVersion.run(version, call.ordinal);
    openCalls.set(step, { ...call, ...change, version });
  }

  /** Writes the terminal part, withdraws what is still asked, and closes the call for good. */
  function end(step: Step, call: OpenCallRow, ended: ToolPart): ToolPart {
    checkEnded(ended);
    if (call.asked) asks.withdraw(step, call, "The call ended.");
    const { part, snapshot } = writePart(step, log, call.ref.sessionId, ended);
    sql.end.run(call.version + 1, step.now, snapshot, call.ordinal);
    openCalls.remove(step, call.ref);
    return part;
  }

  /** Whether the grants of the call's tree are those that somebody looked at. */
  function hasRules({ ref }: OpenCallRow, seen: number | undefined): boolean {
    return seen === undefined || seen === sessions.versions(ref.root).rulesVersion;
  }

  /** Writes the pending part with other arguments. */
  function edit(step: Step, call: OpenCallRow, part: ToolPart): void {
    if (call.started) throw new Error(`call ${call.ref.callId} runs: it cannot be edited`);
    const { snapshot } = writePart(step, log, call.ref.sessionId, part);
    sql.setSnapshot.run(snapshot, call.ordinal);
    raiseVersion(step, call, { settled: step.now });
  }

  function repeatsOf(head: SessionHead, requestDigest: string): number {
    head.latest ??= latestIn(head);
    return head.latest.request === requestDigest ? head.latest.repeats + 1 : 0;
  }

  function latestIn({ ordinal }: SessionHead): { request: string; repeats: number } {
    const row = sql.latest.get(ordinal);
    return row === undefined
      ? { request: "", repeats: 0 }
      : { request: decodeSqliteSpec(row.spec).requestDigest, repeats: row.repeats };
  }

  return {
    raiseVersion,
    edit,
    end,

    /** See the port. */
    repeatsOf(sessionId: string, requestDigest: string): number {
      const head = sessions.find(sessionId);
      return head === undefined ? 0 : repeatsOf(head, requestDigest);
    },

    openCall(step: Step, opened: Parameters<CallStore["openCall"]>[0]): { record: CallRecord; created: boolean } {
      const { spec, owner, leaseMs, maxOpenCalls } = opened;
      const { sessionId, callId } = opened.ref;
      const head = sessions.need(sessionId);
      const existing = records.find(head, callId);
      if (existing !== undefined) return { record: existing, created: false };
      if (head.closed > 0) throw sessionClosed(sessionId);
      if (openCalls.count(sessionId) >= maxOpenCalls) throw tooManyCalls(sessionId, maxOpenCalls);

      const ref: CallRef = { root: head.root, sessionId, callId };
      const pending = writePart(step, log, sessionId, opened.part);
      const repeats = repeatsOf(head, spec.requestDigest);
      const start = repeats > (opened.maxRepeats ?? repeats) ? undefined : opened.start;
      const { part, snapshot } = start ? writePart(step, log, sessionId, start) : pending;
      const started = start === undefined ? 0 : 1;
      const openedSeq = Number(pending.part.revision);
      const versions = { version: 1 + started, epoch: 1 };
      const ordinal = Number(
        sql.insert.run(
          head.ordinal,
          callId,
          openedSeq,
          started,
          versions.version,
          started,
          repeats,
          JSON.stringify(spec),
          snapshot,
        ).lastInsertRowid,
      );
      // What was written has put the head under change: a rollback drops it, and this with it.
      head.latest = { request: spec.requestDigest, repeats };
      const leaseUntil = step.now + leaseMs;
      const isOpen = { started: started === 1, asked: false, owner, leaseUntil, settled: 0 };
      openCalls.set(step, { ordinal, ref, ...versions, ...isOpen });
      if (started === 1) audit.append(step, ref.root, opened.decisions);
      return { record: { ref, part, spec, openedSeq, ...versions, owner, attempts: started, repeats }, created: true };
    },

    claimCall(step: Step, ...claim: Parameters<CallStore["claimCall"]>): CallRecord | undefined {
      const [ref, owner, leaseMs, maxAttempts = 1] = claim;
      const call = openCalls.get(ref);
      if (call === undefined || call.leaseUntil > step.now) return undefined;
      if ((records.get(ref.sessionId, ref.callId)?.attempts ?? 0) >= maxAttempts) return undefined;
      const epoch = call.epoch + 1;
      sql.claim.run(epoch, call.ordinal);
      raiseVersion(step, call, { epoch, owner, started: false, leaseUntil: step.now + leaseMs });
      return records.get(ref.sessionId, ref.callId);
    },

    openAsks(step: Step, opened: Parameters<CallStore["openAsks"]>[0]): boolean {
      const call = openCalls.fenced(opened.fence);
      if (call === undefined || call.version !== opened.version) return false;
      if (!hasRules(call, opened.rulesVersion)) return false;
      asks.withdraw(step, call, opened.message, opened.withdraw);
      if (asks.countOpen(call.ref.root) + opened.asks.length > opened.maxOpenAsks) {
        throw tooManyAsks(call.ref.root, opened.maxOpenAsks);
      }
      for (const request of opened.asks) asks.open(step, call, request);
      if (opened.asks.length > 0) sessions.raiseAsksVersion(call.ref.root);
      raiseVersion(step, call, { asked: true });
      audit.append(step, call.ref.root, opened.decisions);
      return true;
    },

    prepareCall(step: Step, { fence, part }: Parameters<CallStore["prepareCall"]>[0]): boolean {
      const call = openCalls.fenced(fence);
      if (call === undefined || call.started || sql.prepare.run(call.ordinal).changes === 0) return false;
      if (part) sql.setSnapshot.run(writePart(step, log, call.ref.sessionId, part).snapshot, call.ordinal);
      raiseVersion(step, call);
      return true;
    },

    noteCall(step: Step, { fence, hooked, decisions }: Parameters<CallStore["noteCall"]>[0]): boolean {
      const call = openCalls.fenced(fence);
      if (call === undefined) return false;
      if (hooked !== undefined) sql.note.run(hooked, call.ordinal);
      audit.append(step, call.ref.root, decisions);
      return true;
    },

    startCall(step: Step, started: Parameters<CallStore["startCall"]>[0]): "started" | "fenced" | "retry" {
      const call = openCalls.fenced(started.fence);
      if (call === undefined || call.started || call.leaseUntil <= step.now) return "fenced";
      if (call.version !== started.version) return "retry";
      if (!hasRules(call, started.rulesVersion)) return "retry";

      const version = call.version + 1;
      const { snapshot } = writePart(step, log, call.ref.sessionId, started.part);
      sql.start.run(version, snapshot, call.ordinal);
      openCalls.set(step, { ...call, version, started: true });
      grants.use(step, started.grantIds ?? []);
      audit.append(step, call.ref.root, started.decisions);
      return "started";
    },

    recordEvents(step: Step, ...[fence, events]: Parameters<CallStore["recordEvents"]>): boolean {
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

    finishCall(step: Step, finished: Parameters<CallStore["finishCall"]>[0]): ToolPart | undefined {
      const { ref, guard, part, decisions } = finished;
      const call = "fence" in guard ? openCalls.fenced(guard.fence) : openCalls.get(ref);
      if (call === undefined || ("version" in guard && call.version !== guard.version)) return undefined;
      audit.append(step, call.ref.root, decisions);
      return end(step, call, part);
    },

    requestCancel(step: Step, ref: CallRef, message: string): void {
      const call = openCalls.get(ref);
      if (call === undefined || sql.cancel.run(message, call.ordinal).changes === 0) return;
      raiseVersion(step, call);
      step.ring(ref.sessionId, log.nextSeq(ref.sessionId));
    },

    closeSession(step: Step, id: string): CallRef[] {
      const closed = sessions.close(step, id);
      return closed.flatMap((sessionId) => openCalls.inSession(sessionId).map((call) => call.ref));
    },

    /** Open calls without a living lease, those first that have been so for longest. */
    orphans(now: number, limit: number): Awaited<ReturnType<CallStore["orphans"]>> {
      return [...openCalls.all()]
        .filter((call) => call.leaseUntil <= now)
        .map((call) => ({ call, since: Math.max(call.leaseUntil, call.settled) }))
        .sort((one, other) => one.since - other.since)
        .slice(0, limit)
        .flatMap(({ call: { ref, ordinal, started }, since }) => {
          const record = records.get(ref.sessionId, ref.callId);
          return record === undefined ? [] : [{ record, started, openAsks: records.openAskCount(ordinal), since }];
        });
    },
  };
}

function prepare(db: DatabaseSync) {
  return {
    insert: statement(
      db,
      "INSERT INTO calls (session, call_id, opened, started, version, attempts, repeats, spec, snapshot) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
    ),
    latest: statement<{ spec: string; repeats: number }>(
      db,
      "SELECT spec, repeats FROM calls WHERE session = ? ORDER BY ordinal DESC LIMIT 1",
    ),
    prepare: statement(db, "UPDATE calls SET prepared = 1 WHERE ordinal = ? AND prepared = 0"),
    note: statement(db, "UPDATE calls SET hooked = ? WHERE ordinal = ?"),
    setSnapshot: statement(db, "UPDATE calls SET snapshot = ? WHERE ordinal = ?"),
    setVersion: statement(db, "UPDATE calls SET version = ? WHERE ordinal = ?"),
    claim: statement(db, "UPDATE calls SET epoch = ?, started = 0 WHERE ordinal = ?"),
    start: statement(
      db,
      "UPDATE calls SET version = ?, started = 1, attempts = attempts + 1, snapshot = ? WHERE ordinal = ?",
    ),
    end: statement(db, "UPDATE calls SET version = ?, ended = ?, snapshot = ?, hooked = NULL WHERE ordinal = ?"),
    cancel: statement(db, "UPDATE calls SET cancel = ? WHERE ordinal = ? AND cancel IS NULL"),
  };
}
