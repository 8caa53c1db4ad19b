import type { DatabaseSync } from "node:sqlite";
import type { AuditEntry, DecisionRecord } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import { auditEntry, encodeDecision, linkHash } from "../parts.ts";
import type { Step } from "./commit.ts";
import { statement } from "./database.ts";
import type { SqliteExports } from "./exports.ts";
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
  return {
    insert: statement(db, "INSERT INTO decisions (root, seq, time, previous, hash, content) VALUES (?, ?, ?, ?, ?, ?)"),
    last: statement<Pick<Row, "seq" | "hash">>(
      db,
      "SELECT seq, hash FROM decisions WHERE root = ? ORDER BY seq DESC LIMIT 1",
    ),
    gone: statement<{ root: string }>(
      db,
      // One look at the index for each chain, from the last one down.
      `WITH RECURSIVE chains (root) AS (
         SELECT max(root) FROM decisions WHERE root < coalesce(:before, char(0x10ffff))
         UNION ALL SELECT (SELECT max(root) FROM decisions WHERE root < chains.root) FROM chains WHERE root IS NOT NULL
       )
       SELECT root FROM chains WHERE root IS NOT NULL AND NOT EXISTS (SELECT 1 FROM sessions WHERE id = chains.root)
       LIMIT :limit`,
    ),
    after: statement<Row>(
      db,
      "SELECT seq, time, previous, hash, content FROM decisions WHERE root = ? AND seq > ? ORDER BY seq LIMIT ?",
    ),
  };
}
