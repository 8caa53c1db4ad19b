import type { DatabaseSync } from "node:sqlite";
import { create } from "@bufbuild/protobuf";
import { SessionEventSchema } from "../../../gen/opencode/tool/v1/event_pb.ts";
import type { ToolPart } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { encodeMessage } from "../../core/encode-message.ts";
import { withoutLargeInput } from "../parts.ts";
import type { SqliteAsks } from "./asks.ts";
import type { SqliteAudit } from "./audit.ts";
import type { SqliteCallRecords, StoredSpec } from "./call-records.ts";
import type { Step } from "./commit.ts";
import { statement } from "./database.ts";
import type { SqliteGrants } from "./grants.ts";
import type { SqliteLog } from "./log.ts";
import type { OpenCallTable } from "./open-calls.ts";
import type { SqliteSessions } from "./sessions.ts";

/** Statements that write rows of `calls`. */
type CallStatements = ReturnType<typeof prepareCallStatements>;

/** Prepares the statements that write rows of `calls`. */
export function prepareCallStatements(db: DatabaseSync) {
  return {
    insert: statement(
      db,
      "INSERT INTO calls (session, call_id, opened, started, version, attempts, repeats, spec, spec_crc, snapshot, snapshot_crc, remote, ended) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    ),
    latest: statement<StoredSpec & { repeats: number }>(
      db,
      "SELECT spec, spec_crc AS specCrc, repeats FROM calls WHERE session = ? ORDER BY ordinal DESC LIMIT 1",
    ),
    prepare: statement(db, "UPDATE calls SET prepared = 1 WHERE ordinal = ? AND prepared = 0"),
    note: statement(db, "UPDATE calls SET hooked = coalesce(?, hooked), memo = coalesce(?, memo) WHERE ordinal = ?"),
    setSnapshot: statement(db, "UPDATE calls SET snapshot = ?, snapshot_crc = ? WHERE ordinal = ?"),
    setVersion: statement(db, "UPDATE calls SET version = ? WHERE ordinal = ?"),
    claim: statement(db, "UPDATE calls SET epoch = ?, started = 0, remote = NULL WHERE ordinal = ?"),
    adopt: statement(db, "UPDATE calls SET epoch = ?, remote = ? WHERE ordinal = ?"),
    restart: statement(
      db,
      "UPDATE calls SET epoch = ?, started = 0, attempts = attempts - 1, remote = NULL, queued_until = ? WHERE ordinal = ?",
    ),
    queue: statement(db, "UPDATE calls SET queued_until = ? WHERE ordinal = ?"),
    postponeQueues: statement(
      db,
      "UPDATE calls SET queued_until = queued_until + ? WHERE queued_until IS NOT NULL AND ended IS NULL",
    ),
    resume: statement(db, "UPDATE calls SET epoch = ? WHERE ordinal = ?"),
    start: statement(
      db,
      "UPDATE calls SET version = ?, started = 1, attempts = attempts + 1, snapshot = ?, snapshot_crc = ?, remote = ?, queued_until = NULL WHERE ordinal = ?",
    ),
    assign: statement(db, "UPDATE calls SET assignment = ? WHERE ordinal = ?"),
    report: statement(
      db,
      "UPDATE calls SET reported = 1 WHERE reported = 0 AND ended IS NOT NULL AND call_id = ? AND session = (SELECT ordinal FROM sessions WHERE id = ?)",
    ),
    end: statement(
      db,
      "UPDATE calls SET version = ?, ended = ?, snapshot = ?, snapshot_crc = ?, hooked = NULL, memo = NULL WHERE ordinal = ?",
    ),
    cancel: statement(db, "UPDATE calls SET cancel = ? WHERE ordinal = ? AND cancel IS NULL"),
  };
}

/** A part as its record stores it: with its whole input and the sequence number of its event, and its binary form. */
interface WrittenSqlitePart {
  part: ToolPart;
  snapshot: Uint8Array;
}

/** Appends a call's new snapshot to the log of its session; a large input is emitted only with the pending part. */
export function writePart(step: Step, log: SqliteLog, sessionId: string, given: ToolPart): WrittenSqlitePart {
  const revision = BigInt(log.nextSeq(sessionId));
  const part: ToolPart = { ...given, sessionId, permissionIds: [], revision, inputElided: false };
  const emitted = part.state.case === "pending" ? part : withoutLargeInput(part);
  const bytes = log.append(step, sessionId, { case: "part", value: emitted });
  if (emitted === part) return { part, snapshot: bytes };
  const whole = create(SessionEventSchema, { event: { case: "part", value: part } });
  return { part, snapshot: encodeMessage(SessionEventSchema, whole) };
}

/** State of an open SQLite store: the database and the tables that its transitions read and write. */
export interface SqliteTables {
  readonly db: DatabaseSync;
  readonly sessions: SqliteSessions;
  readonly log: SqliteLog;
  readonly openCalls: OpenCallTable;
  readonly records: SqliteCallRecords;
  readonly asks: SqliteAsks;
  readonly audit: SqliteAudit;
  readonly grants: SqliteGrants;
  readonly callSql: CallStatements;
  /** Throws STORE_UNAVAILABLE while the disk has no space for new sessions and calls. */
  readonly checkSpace: () => void;
}
