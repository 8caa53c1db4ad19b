import type { DatabaseSync } from "node:sqlite";
import type { AuditEntry, DecisionRecord } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import type { ExportCursor, NotedExport } from "../../reach/ports.ts";
import { auditEntry, encodeDecision, linkHash } from "../parts.ts";
import type { Step } from "./commit.ts";
import { statementsOf } from "./database.ts";
import type { SessionHead, SqliteSessions } from "./sessions.ts";

/** The audit of a store: a chain of decisions for each session tree. */
export type SqliteAudit = ReturnType<typeof createSqliteAudit>;

/** Appends the decisions of a step to the chain of its tree, and reads the chain. */
export function createSqliteAudit(
  db: DatabaseSync,
  sessions: Pick<SqliteSessions, "change" | "find">,
  exports: Pick<SqliteExports, "mark">,
) {
  const sql = prepare(db);
  return {
    append(step: Step, root: string, records: readonly DecisionRecord[] = []): void {
      if (records.length === 0) return;
      // The audit of the service itself has no session.
      const head: Pick<SessionHead, "decided"> = sessions.find(root) ? sessions.change(step, root) : {};
      for (const record of records) {
        const { content, sha256 } = encodeDecision(record);
        const last = head.decided ?? sql.last.get(root) ?? { seq: 0, hash: "" };
        const [seq, previous, time] = [last.seq + 1, last.hash, Math.floor(step.now)];
        const hash = linkHash(previous, seq, time, sha256);
        sql.insert.run(root, seq, time, previous, hash, content);
        head.decided = { seq, hash };
      }
      exports.mark(root);
    },

    list({ root, afterSeq, limit }: { root: string; afterSeq: number; limit: number }): AuditEntry[] {
      return sql.after.all(root, afterSeq, limit).map((row) => auditEntry({ ...row, rootSessionId: root }));
    },

    /** Lists the roots of removed trees, see the port; session ids sort by creation. */
    gone({ before, limit }: { before?: string; limit: number }): string[] {
      return sql.gone.all({ before: before ?? null, limit }).map(({ root }) => root);
    },
  };
}

interface Row {
  seq: number;
  time: number;
  previous: string;
  hash: string;
  content: Uint8Array;
}

function prepare(db: DatabaseSync) {
  const statement = statementsOf(db);
  return {
    insert: statement("INSERT INTO decisions (root, seq, time, previous, hash, content) VALUES (?, ?, ?, ?, ?, ?)"),
    last: statement<Pick<Row, "seq" | "hash">>(
      "SELECT seq, hash FROM decisions WHERE root = ? ORDER BY seq DESC LIMIT 1",
    ),
    gone: statement<{ root: string }>(
      // One look at the index for each chain, from the last one down.
      `WITH RECURSIVE chains (root) AS (
         SELECT max(root) FROM decisions WHERE root < coalesce(:before, char(0x10ffff))
         UNION ALL SELECT (SELECT max(root) FROM decisions WHERE root < chains.root) FROM chains WHERE root IS NOT NULL
       )
       SELECT root FROM chains WHERE root IS NOT NULL AND NOT EXISTS (SELECT 1 FROM sessions WHERE id = chains.root)
       LIMIT :limit`,
    ),
    after: statement<Row>(
      "SELECT seq, time, previous, hash, content FROM decisions WHERE root = ? AND seq > ? ORDER BY seq LIMIT ?",
    ),
  };
}

/** Cursors of the receivers of the audit. */
type SqliteExports = ReturnType<typeof createSqliteExports>;

/** Creates the cursors. A step that appends to a chain marks it as pending for each receiver; the export removes the mark. */
export function createSqliteExports(db: DatabaseSync, receivers: readonly string[]) {
  const sql = prepareCursors(db);
  return {
    /** Removes receivers that are no longer configured, and begins new ones with all chains. Cursors stay. No other replica has a lease. */
    begin(): void {
      sql.release.run();
      const known = sql.receivers.all().map(({ receiver }) => receiver);
      for (const receiver of known) if (!receivers.includes(receiver)) sql.remove.run(receiver);
      for (const receiver of receivers) {
        if (known.includes(receiver)) continue;
        sql.add.run(receiver);
        sql.markAll.run(receiver);
      }
    },

    /** Marks a chain to which a step appends. */
    mark(root: string): void {
      if (receivers.length > 0) sql.mark.run(root);
    },

    claim(step: Pick<Step, "now">, receiver: string, owner: string, leaseMs: number): boolean {
      return sql.claim.run({ receiver, owner, now: step.now, until: step.now + leaseMs }).changes === 1;
    },

    pending: (receiver: string, { skip, limit }: { skip: number; limit: number }): ExportCursor[] =>
      sql.pending.all(receiver, limit, skip).map((row) => ({ ...row })),

    note({ receiver, owner, cursors, ended }: NotedExport): boolean {
      if (sql.holds.get(receiver, owner) === undefined) return false;
      for (const cursor of cursors) sql.move.run({ receiver, ...cursor });
      for (const root of [...cursors.map((cursor) => cursor.root), ...ended]) sql.unmark.run({ receiver, root });
      return true;
    },

    losses: (): ReadonlyMap<string, number> =>
      new Map(sql.receivers.all().map(({ receiver, lost }) => [receiver, lost])),

    /** Counts a record that is removed before receivers accepted it. */
    lose: (root: string, seq: number): void => void sql.lose.run(root, seq),

    /** Removes the cursors of chains that are gone. */
    sweep(): void {
      if (receivers.length > 0) sql.dropCursors.run();
    },
  };
}

function prepareCursors(db: DatabaseSync) {
  const statement = statementsOf(db);
  return {
    receivers: statement<{ receiver: string; lost: number }>("SELECT receiver, lost FROM receivers"),
    release: statement("UPDATE receivers SET owner = '', lease = 0 WHERE owner <> ''"),
    remove: statement("DELETE FROM receivers WHERE receiver = ?"),
    add: statement("INSERT INTO receivers (receiver) VALUES (?)"),
    // One look at the index for each chain.
    markAll: statement(
      `WITH RECURSIVE chains (root) AS (
         SELECT min(root) FROM decisions
         UNION ALL SELECT (SELECT min(root) FROM decisions WHERE root > chains.root) FROM chains WHERE root IS NOT NULL
       )
       INSERT INTO exports (receiver, root, pending) SELECT ?, root, 1 FROM chains WHERE root IS NOT NULL
       ON CONFLICT DO UPDATE SET pending = 1`,
    ),
    mark: statement(
      `INSERT INTO exports (receiver, root, pending) SELECT receiver, ?, 1 FROM receivers WHERE true
       ON CONFLICT DO UPDATE SET pending = 1 WHERE pending = 0`,
    ),
    claim: statement(
      "UPDATE receivers SET owner = :owner, lease = :until WHERE receiver = :receiver AND (owner = :owner OR lease <= :now)",
    ),
    holds: statement<{ owner: string }>("SELECT owner FROM receivers WHERE receiver = ? AND owner = ?"),
    pending: statement<ExportCursor>(
      "SELECT root, seq, hash FROM exports WHERE receiver = ? AND pending = 1 ORDER BY root LIMIT ? OFFSET ?",
    ),
    move: statement("UPDATE exports SET seq = :seq, hash = :hash WHERE receiver = :receiver AND root = :root"),
    unmark: statement(
      `UPDATE exports SET pending = EXISTS (SELECT 1 FROM decisions d WHERE d.root = exports.root AND d.seq > exports.seq)
       WHERE receiver = :receiver AND root = :root`,
    ),
    lose: statement(
      `UPDATE receivers SET lost = lost + 1
       WHERE coalesce((SELECT seq FROM exports e WHERE e.receiver = receivers.receiver AND e.root = ?), 0) < ?`,
    ),
    dropCursors: statement(
      "DELETE FROM exports WHERE NOT EXISTS (SELECT 1 FROM decisions WHERE decisions.root = exports.root)",
    ),
  };
}
