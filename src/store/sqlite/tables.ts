import type { DatabaseSync } from "node:sqlite";
import type { SqliteAsks } from "./asks.ts";
import type { SqliteAudit } from "./audit.ts";
import type { SqliteCallRecords } from "./call-records.ts";
import type { CallStatements } from "./call-statements.ts";
import type { SqliteGrants } from "./grants.ts";
import type { SqliteLog } from "./log.ts";
import type { OpenCallTable } from "./open-calls.ts";
import type { SqliteSessions } from "./sessions.ts";

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
