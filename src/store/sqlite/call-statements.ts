import type { DatabaseSync } from "node:sqlite";
import { create, toBinary } from "@bufbuild/protobuf";
import { SessionEventSchema } from "../../../gen/opencode/tool/v1/event_pb.ts";
import type { ToolPart } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import type { SettledStart } from "../../approval/ports.ts";
import type { HostStart } from "../../call/ports.ts";
import { backgroundEndOf, checkEnded, sealed, withoutLargeInput } from "../parts.ts";
import { createSqliteAsks } from "./asks.ts";
import { createSqliteAudit, createSqliteExports } from "./audit.ts";
import { createSqliteCallRecords, type StoredSpec } from "./call-records.ts";
import type { Step } from "./commit.ts";
import { statementsOf } from "./database.ts";
import { createSqliteGrants } from "./grants.ts";
import { createSqliteLog, type LogLimits, type SqliteLog } from "./log.ts";
import { createSqliteNotices } from "./notices.ts";
import { createOpenCallTable, type OpenCallRow } from "./open-calls.ts";
import { createSqliteSessions } from "./sessions.ts";

/** Prepares the statements that write rows of `calls`. */
function prepareCallStatements(db: DatabaseSync) {
  const statement = statementsOf(db);
  return {
    insert: statement(
      "INSERT INTO calls (session, call_id, opened, started, version, attempts, repeats, spec, spec_crc, snapshot, snapshot_crc, remote, ended) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    ),
    latest: statement<StoredSpec & { repeats: number }>(
      "SELECT spec, spec_crc AS specCrc, repeats FROM calls WHERE session = ? ORDER BY ordinal DESC LIMIT 1",
    ),
    prepare: statement("UPDATE calls SET prepared = 1 WHERE ordinal = ? AND prepared = 0"),
    note: statement("UPDATE calls SET hooked = coalesce(?, hooked), memo = coalesce(?, memo) WHERE ordinal = ?"),
    setSnapshot: statement("UPDATE calls SET snapshot = ?, snapshot_crc = ? WHERE ordinal = ?"),
    setVersion: statement("UPDATE calls SET version = ? WHERE ordinal = ?"),
    claim: statement("UPDATE calls SET epoch = ?, started = 0, remote = NULL WHERE ordinal = ?"),
    adopt: statement("UPDATE calls SET epoch = ?, remote = ? WHERE ordinal = ?"),
    restart: statement(
      "UPDATE calls SET epoch = ?, started = 0, attempts = attempts - 1, remote = NULL, queued_until = ? WHERE ordinal = ?",
    ),
    queue: statement("UPDATE calls SET queued_until = ? WHERE ordinal = ?"),
    postponeQueues: statement(
      "UPDATE calls SET queued_until = queued_until + ? WHERE queued_until IS NOT NULL AND ended IS NULL",
    ),
    resume: statement("UPDATE calls SET epoch = ? WHERE ordinal = ?"),
    start: statement(
      "UPDATE calls SET version = ?, started = 1, attempts = attempts + 1, snapshot = ?, snapshot_crc = ?, remote = ?, queued_until = NULL WHERE ordinal = ?",
    ),
    assign: statement("UPDATE calls SET assignment = ? WHERE ordinal = ?"),
    report: statement(
      "UPDATE calls SET reported = 1 WHERE reported = 0 AND ended IS NOT NULL AND call_id = ? AND session = (SELECT ordinal FROM sessions WHERE id = ?)",
    ),
    end: statement(
      "UPDATE calls SET version = ?, ended = ?, snapshot = ?, snapshot_crc = ?, hooked = NULL, memo = NULL WHERE ordinal = ?",
    ),
    cancel: statement("UPDATE calls SET cancel = ? WHERE ordinal = ? AND cancel IS NULL"),
  };
}

/**
 * Appends a call's new snapshot to the log of its session; a large input is emitted only with the pending part. Returns the part
 * as its record stores it, with its whole input and the sequence number of its event, and its binary form.
 */
export function writePart(step: Step, log: SqliteLog, sessionId: string, given: ToolPart) {
  const revision = BigInt(log.nextSeq(sessionId));
  const part: ToolPart = { ...given, sessionId, permissionIds: [], revision, inputElided: false };
  const emitted = part.state.case === "pending" ? part : withoutLargeInput(part);
  const bytes = log.append(step, sessionId, { case: "part", value: emitted });
  if (emitted === part) return { part, snapshot: bytes };
  const whole = create(SessionEventSchema, { event: { case: "part", value: part } });
  return { part, snapshot: toBinary(SessionEventSchema, whole) };
}

/** State of an open SQLite store: the database and the tables that its transitions read and write. */
export type SqliteTables = ReturnType<typeof openTables>;

/** Opens the tables of a database. */
export function openTables(
  db: DatabaseSync,
  { limits, receivers, now }: { limits: LogLimits; receivers: readonly string[]; now: () => number },
  /** Throws STORE_UNAVAILABLE while the disk has no space for new sessions and calls. */
  checkSpace: () => void,
) {
  const sessions = createSqliteSessions(db, checkSpace);
  const log = createSqliteLog({ db, sessions, limits });
  const openCalls = createOpenCallTable(db, now());
  const records = createSqliteCallRecords({ db, sessions, openCalls, now });
  const notices = createSqliteNotices(db);
  const asks = createSqliteAsks({ db, log, records, notices });
  const exports = createSqliteExports(db, receivers);
  const audit = createSqliteAudit(db, sessions, exports);
  const grants = createSqliteGrants({ db, sessions, log, audit });
  return {
    db,
    sessions,
    log,
    openCalls,
    records,
    asks,
    notices,
    audit,
    exports,
    grants,
    callSql: prepareCallStatements(db),
    checkSpace,
  };
}

type Tables = Pick<SqliteTables, "callSql" | "openCalls" | "log" | "asks">;

/** Raises the version of a call, which invalidates whatever was computed from an earlier one. */
export function raiseCallVersion(
  { callSql, openCalls }: Pick<Tables, "callSql" | "openCalls">,
  step: Step,
  call: OpenCallRow,
  change: Partial<OpenCallRow> = {},
): void {
  const version = call.version + 1;
  callSql.setVersion.run(version, call.ordinal);
  openCalls.set(step, { ...call, ...change, version });
}

/** Stores the assignment of a delegated call that starts, and returns the end of its lease. */
export function startAtHost(
  { callSql }: Pick<Tables, "callSql">,
  step: Step,
  ordinal: number,
  { assignment, reportMs }: HostStart,
): Pick<OpenCallRow, "owner" | "leaseUntil"> {
  callSql.assign.run(assignment, ordinal);
  return { owner: "", leaseUntil: step.now + reportMs };
}

/**
 * Writes that asks of the call were settled, and the pending part if its input was edited. A call without an owner that waits
 * for no other ask becomes an orphan, a delegated one when its approval was not collected in time. Returns true if a replica has
 * to claim the call.
 */
export function settleCallRow(tables: Tables, step: Step, call: OpenCallRow, part?: ToolPart): boolean {
  if (part && call.started) throw new Error(`call ${call.ref.callId} is running: its input cannot be edited`);
  if (part) {
    const { snapshot } = writePart(step, tables.log, call.ref.sessionId, part);
    tables.callSql.setSnapshot.run(...sealed(snapshot), call.ordinal);
  }
  const isFree = call.owner === "" && tables.asks.openOfCall(call.ordinal).length === 0;
  const leaseUntil = isFree ? step.now + call.collectMs : call.leaseUntil;
  raiseCallVersion(tables, step, call, { settled: step.now, leaseUntil });
  return isFree && call.collectMs === 0;
}

/** Claims a call whose last ask was settled, and writes its start mark. */
export function startSettledCall(tables: Tables, step: Step, call: OpenCallRow, start: SettledStart): void {
  const { callSql, openCalls, log } = tables;
  const [version, epoch] = [call.version + 1, call.epoch + 1];
  callSql.claim.run(epoch, call.ordinal);
  const { snapshot } = writePart(step, log, call.ref.sessionId, start.part);
  callSql.start.run(version, ...sealed(snapshot), null, call.ordinal);
  const lease = { owner: start.owner, leaseUntil: step.now + start.leaseMs };
  openCalls.set(step, { ...call, ...lease, version, epoch, started: true, settled: step.now, queued: undefined });
}

/** Writes the terminal part, withdraws the call's open asks and closes the call. */
export function endCallRow(
  { callSql, openCalls, log, asks }: Tables,
  step: Step,
  call: OpenCallRow,
  ended: ToolPart,
  withdrawal = "The call ended.",
): ToolPart {
  checkEnded(ended);
  if (call.asked) asks.withdraw(step, call, withdrawal);
  const { part, snapshot } = writePart(step, log, call.ref.sessionId, ended);
  const end = backgroundEndOf(part);
  if (end) log.append(step, call.ref.sessionId, end);
  callSql.end.run(call.version + 1, step.now, ...sealed(snapshot), call.ordinal);
  openCalls.remove(step, call.ref);
  if (call.parent !== "") freeParent(openCalls, step, call);
  return part;
}

/** Makes a parked call an orphan when the last call that it waits for has ended. */
function freeParent(openCalls: Tables["openCalls"], step: Step, { ref, parent: callId }: OpenCallRow): void {
  const parent = openCalls.get({ ...ref, callId });
  if (parent?.owner !== "" || !parent.started || openCalls.descendants(parent.ref).length > 0) return;
  openCalls.set(step, { ...parent, leaseUntil: step.now });
}

/** Compares the rules version of the call's tree with the one at which grants were consulted, if they were. */
export function hasRulesVersion({ sessions }: SqliteTables, { ref }: OpenCallRow, seen: number | undefined): boolean {
  return seen === undefined || seen === sessions.versions(ref.root).rulesVersion;
}
