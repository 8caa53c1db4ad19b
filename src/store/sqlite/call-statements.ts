import type { DatabaseSync } from "node:sqlite";
import type { StoredSpec } from "./call-records.ts";
import { statement } from "./database.ts";

/** Statements that write rows of `calls`. */
export type CallStatements = ReturnType<typeof prepareCallStatements>;

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
