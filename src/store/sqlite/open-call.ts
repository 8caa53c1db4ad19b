import type { OpenCallStep, OpenedCall } from "../../call/ports.ts";
import type { CallRef } from "../../core/call-ref.ts";
import { sealed } from "../checksum.ts";
import { checkEnded } from "../parts.ts";
import { parentEnded, sessionClosed, tooManyCalls } from "../refusals.ts";
import { decodeSqliteSpec } from "./call-records.ts";
import { startAtHost } from "./call-rows.ts";
import { type SqliteTables, writePart } from "./call-statements.ts";
import type { Step } from "./commit.ts";
import type { SessionHead } from "./sessions.ts";

/** open_call: checks the guards, then inserts the call; starts and ends it, or lets it wait for a worker, in the same step if it may. */
export function applyOpenCall(tables: SqliteTables, step: Step, opened: OpenCallStep): OpenedCall {
  const { sessions, log, openCalls, records, audit, callSql } = tables;
  const { spec, owner, leaseMs, maxOpenCalls, unrecordedCalls = 0 } = opened;
  const { sessionId, callId } = opened.ref;
  const head = sessions.need(sessionId);
  const existing = records.find(head, callId);
  if (existing !== undefined) return { record: existing, created: false };
  if (head.closed > 0) throw sessionClosed(sessionId);
  const { parent = "" } = spec;
  if (parent !== "" && !openCalls.get({ sessionId, callId: parent })) throw parentEnded(sessionId, parent);
  tables.checkSpace();
  if (!spec.delegated && openCalls.hasAtLeast(sessionId, maxOpenCalls - unrecordedCalls))
    throw tooManyCalls(sessionId, maxOpenCalls);

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
