import type { DatabaseSync } from "node:sqlite";
import { create, toBinary } from "@bufbuild/protobuf";
import { SessionEventSchema } from "../../../gen/opencode/tool/v1/event_pb.ts";
import { GrantScope } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import { tombstone } from "../parts.ts";
import { auditRetentionMs, logRetentionMs, partRetentionMs, recordRetentionMs } from "../retention.ts";
import { decodeSqlitePart } from "./call-records.ts";
import type { Commit, Step } from "./commit.ts";
import { statement } from "./database.ts";
import type { OutputFiles } from "./outputs.ts";
import type { SqliteTables } from "./tables.ts";

/** Creates the function that removes records past their retention, in portions, so that no other transition waits for long. */
export function createSqliteSweep(options: {
  tables: Pick<SqliteTables, "db" | "sessions" | "log">;
  commit: Commit;
  outputs: OutputFiles;
  now: () => number;
}): () => Promise<{ outputs: { root: string; id: string }[] }> {
  const { commit, outputs, now } = options;
  const { db, sessions, log } = options.tables;
  const sql = prepare(db);

  // Each function returns true if there may be more to remove.

  function dropParts(step: Step): boolean {
    const rows = sql.endedBefore.all(step.now - partRetentionMs, portion);
    for (const { ordinal, snapshot } of rows) {
      sql.dropAsks.run(ordinal);
      const event = { case: "part" as const, value: tombstone(decodeSqlitePart(snapshot)) };
      sql.bury.run(toBinary(SessionEventSchema, create(SessionEventSchema, { event })), ordinal);
    }
    return rows.length === portion;
  }

  function dropTombstones(step: Step): boolean {
    return sql.dropTombstones.run(step.now - recordRetentionMs, portion).changes === portion;
  }

  function trimIdleLog(step: Step): boolean {
    const idle = sql.idle.get(step.now - logRetentionMs);
    if (idle === undefined) return false;
    const head = sessions.change(step, idle.id);
    head.active = log.timeOfLast(head);
    if (head.active <= step.now - logRetentionMs) log.trim(head, Math.min(head.trimmed + logPortion, head.lastSeq));
    head.logged = head.trimmed < head.lastSeq;
    if (!head.logged) log.forget(head.id);
    sql.setActivity.run(head.active, head.logged ? 1 : 0, head.ordinal);
    return true;
  }

  function dropDeadGrants(step: Step): boolean {
    sql.dropDeadGrants.run({ before: step.now - recordRetentionMs });
    sql.dropUsersOfNone.run();
    return false;
  }

  /** Removes decisions from the beginning of their chains; the rest of a chain stays valid. */
  function trimAudit(step: Step): boolean {
    return sql.trimAudit.run(step.now - auditRetentionMs, portion).changes === portion;
  }

  /** Removes a session tree that contains nothing but idle sessions; returns its root. */
  function dropTree(step: Step): string | undefined {
    const root = sql.deadTree.get({ before: step.now - recordRetentionMs })?.root;
    if (root === undefined) return undefined;
    for (const { id } of sql.sessionsOf.all(root)) {
      sessions.forget(id);
      log.forget(id);
    }
    for (const drop of sql.dropTree) drop.run(root);
    return root;
  }

  return async () => {
    for (const drop of [dropParts, dropTombstones, trimIdleLog, dropDeadGrants, trimAudit]) {
      while (await commit.run(drop));
    }
    for (let root = await commit.run(dropTree); root !== undefined; root = await commit.run(dropTree)) {
      await outputs.removeTree(root);
    }
    return { outputs: await outputs.unwrittenSince(now() - partRetentionMs) };
  };
}

const portion = 200;
const logPortion = 5_000;

function prepare(db: DatabaseSync) {
  return {
    endedBefore: statement<{ ordinal: number; snapshot: Uint8Array }>(
      db,
      "SELECT ordinal, snapshot FROM calls WHERE expired = 0 AND ended <= ? ORDER BY ended LIMIT ?",
    ),
    dropAsks: statement(db, "DELETE FROM asks WHERE call = ?"),
    bury: statement(db, "UPDATE calls SET expired = 1, snapshot = ? WHERE ordinal = ?"),
    dropTombstones: statement(
      db,
      "DELETE FROM calls WHERE ordinal IN (SELECT ordinal FROM calls WHERE expired = 1 AND ended <= ? ORDER BY ended LIMIT ?)",
    ),
    idle: statement<{ id: string }>(db, "SELECT id FROM sessions WHERE logged = 1 AND active <= ? LIMIT 1"),
    setActivity: statement(db, "UPDATE sessions SET active = ?, logged = ? WHERE ordinal = ?"),
    dropDeadGrants: statement(
      db,
      "DELETE FROM grants WHERE revoked > 0 AND revoked <= :before OR expires > 0 AND expires <= :before",
    ),
    trimAudit: statement(
      db,
      "DELETE FROM decisions WHERE (root, seq) IN (SELECT root, seq FROM decisions WHERE time <= ? ORDER BY time LIMIT ?)",
    ),
    dropUsersOfNone: statement(db, "DELETE FROM grant_users WHERE grant_id NOT IN (SELECT id FROM grants)"),
    deadTree: statement<{ root: string }>(
      db,
      `SELECT root FROM sessions s WHERE logged = 0 AND active <= :before AND NOT EXISTS (
         SELECT 1 FROM sessions o WHERE o.root = s.root AND (logged = 1 OR active > :before
           OR EXISTS (SELECT 1 FROM calls WHERE calls.session = o.ordinal))) LIMIT 1`,
    ),
    sessionsOf: statement<{ id: string }>(db, "SELECT id FROM sessions WHERE root = ?"),
    dropTree: [
      statement(db, `DELETE FROM grants WHERE root = ? AND scope = ${GrantScope.SESSION}`),
      statement(db, "DELETE FROM grant_users WHERE root = ?"),
      statement(db, "DELETE FROM reads WHERE root = ?"),
      statement(db, "DELETE FROM states WHERE session IN (SELECT id FROM sessions WHERE root = ?)"),
      statement(db, "DELETE FROM sessions WHERE root = ?"),
    ],
  };
}
