import type { DatabaseSync } from "node:sqlite";
import type { ExportCursor, NotedExport } from "../../reach/ports.ts";
import type { Step } from "./commit.ts";
import { statement } from "./database.ts";

/** Cursors of the receivers of the audit. */
export type SqliteExports = ReturnType<typeof createSqliteExports>;

/** Creates the cursors. A step that appends to a chain marks it as pending for each receiver; the export removes the mark. */
export function createSqliteExports(db: DatabaseSync, receivers: readonly string[]) {
  const sql = prepare(db);
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

function prepare(db: DatabaseSync) {
  return {
    receivers: statement<{ receiver: string; lost: number }>(db, "SELECT receiver, lost FROM receivers"),
    release: statement(db, "UPDATE receivers SET owner = '', lease = 0 WHERE owner <> ''"),
    remove: statement(db, "DELETE FROM receivers WHERE receiver = ?"),
    add: statement(db, "INSERT INTO receivers (receiver) VALUES (?)"),
    // One look at the index for each chain.
    markAll: statement(
      db,
      `WITH RECURSIVE chains (root) AS (
         SELECT min(root) FROM decisions
         UNION ALL SELECT (SELECT min(root) FROM decisions WHERE root > chains.root) FROM chains WHERE root IS NOT NULL
       )
       INSERT INTO exports (receiver, root, pending) SELECT ?, root, 1 FROM chains WHERE root IS NOT NULL
       ON CONFLICT DO UPDATE SET pending = 1`,
    ),
    mark: statement(
      db,
      `INSERT INTO exports (receiver, root, pending) SELECT receiver, ?, 1 FROM receivers WHERE true
       ON CONFLICT DO UPDATE SET pending = 1 WHERE pending = 0`,
    ),
    claim: statement(
      db,
      "UPDATE receivers SET owner = :owner, lease = :until WHERE receiver = :receiver AND (owner = :owner OR lease <= :now)",
    ),
    holds: statement<{ owner: string }>(db, "SELECT owner FROM receivers WHERE receiver = ? AND owner = ?"),
    pending: statement<ExportCursor>(
      db,
      "SELECT root, seq, hash FROM exports WHERE receiver = ? AND pending = 1 ORDER BY root LIMIT ? OFFSET ?",
    ),
    move: statement(db, "UPDATE exports SET seq = :seq, hash = :hash WHERE receiver = :receiver AND root = :root"),
    unmark: statement(
      db,
      `UPDATE exports SET pending = EXISTS (SELECT 1 FROM decisions d WHERE d.root = exports.root AND d.seq > exports.seq)
       WHERE receiver = :receiver AND root = :root`,
    ),
    lose: statement(
      db,
      `UPDATE receivers SET lost = lost + 1
       WHERE coalesce((SELECT seq FROM exports e WHERE e.receiver = receivers.receiver AND e.root = ?), 0) < ?`,
    ),
    dropCursors: statement(
      db,
      "DELETE FROM exports WHERE NOT EXISTS (SELECT 1 FROM decisions WHERE decisions.root = exports.root)",
    ),
  };
}
