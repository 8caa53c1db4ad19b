import type { DatabaseSync } from "node:sqlite";
import { statement } from "./database.ts";

/** Statements that write rows of `calls`. */
export type CallStatements = ReturnType<typeof prepareCallStatements>;

/** Prepares the statements that write rows of `calls`. */
export function prepareCallStatements(db: DatabaseSync) {
  return {
    insert: statement(
      db,
      "INSERT INTO calls (session, call_id, opened, started, version, attempts, repeats, spec, snapshot, ended) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
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
    resume: statement(db, "UPDATE calls SET epoch = ? WHERE ordinal = ?"),
    start: statement(
      db,
      "UPDATE calls SET version = ?, started = 1, attempts = attempts + 1, snapshot = ? WHERE ordinal = ?",
    ),
    assign: statement(db, "UPDATE calls SET assignment = ? WHERE ordinal = ?"),
    report: statement(
      db,
      "UPDATE calls SET reported = 1 WHERE reported = 0 AND ended IS NOT NULL AND call_id = ? AND session = (SELECT ordinal FROM sessions WHERE id = ?)",
    ),
    end: statement(db, "UPDATE calls SET version = ?, ended = ?, snapshot = ?, hooked = NULL WHERE ordinal = ?"),
    cancel: statement(db, "UPDATE calls SET cancel = ? WHERE ordinal = ? AND cancel IS NULL"),
  };
}
