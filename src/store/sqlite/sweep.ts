import type { DatabaseSync } from "node:sqlite";
import { create, toBinary } from "@bufbuild/protobuf";
import { SessionEventSchema } from "../../../gen/opencode/tool/v1/event_pb.ts";
import { GrantScope } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import { auditKept } from "../audit.ts";
import { tombstone } from "../parts.ts";
import { decodeSqlitePart } from "./call-records.ts";
import type { Commit, Step } from "./commit.ts";
import { statement } from "./database.ts";
import type { SqliteLog } from "./log.ts";
import type { OutputFiles } from "./outputs.ts";
import type { SqliteSessions } from "./sessions.ts";

/** Makes the function that removes what is past its time, in portions, so that no other transition waits for long. */
export function createSqliteSweep(options: {
  db: DatabaseSync;
  commit: Commit;
  sessions: SqliteSessions;
  log: SqliteLog;
  outputs: OutputFiles;
  now: () => number;
}): () => Promise<{ outputs: { root: string; id: string }[] }> {
  const { commit, sessions, log, outputs, now } = options;
  const sql = prepare(options.db);

  // Each of these says whether there may be more to remove.

  function dropParts(step: Step): boolean {
    const rows = sql.endedBefore.all(step.now - partsKept, portion);
    for (const { ordinal, snapshot } of rows) {
      sql.dropAsks.run(ordinal);
      const event = { case: "part" as const, value: tombstone(decodeSqlitePart(snapshot)) };
      sql.bury.run(toBinary(SessionEventSchema, create(SessionEventSchema, { event })), ordinal);
    }
    return rows.length === portion;
  }

  function dropTombstones(step: Step): boolean {
    return sql.dropTombstones.run(step.now - recordsKept, portion).changes === portion;
  }

  function trimIdleLog(step: Step): boolean {
    const idle = sql.idle.get(step.now - logKept);
    if (idle === undefined) return false;
    const head = sessions.change(step, idle.id);
    head.active = log.timeOfLast(head);
    if (head.active <= step.now - logKept) log.trim(head, Math.min(head.trimmed + logPortion, head.lastSeq));
    head.logged = head.trimmed < head.lastSeq;
    if (!head.logged) log.forget(head.id);
    sql.setActivity.run(head.active, head.logged ? 1 : 0, head.ordinal);
    return true;
  }

  function dropDeadGrants(step: Step): boolean {
    sql.dropDeadGrants.run({ before: step.now - recordsKept });
    sql.dropUsersOfNone.run();
    return false;
  }

  /** Removes decisions from the beginning of their chains; what follows stays as it is. */
  function trimAudit(step: Step): boolean {
    return sql.trimAudit.run(step.now - auditKept, portion).changes === portion;
  }

  /** Removes a session tree of which nothing but the sessions is left; returns its root. */
  function dropTree(step: Step): string | undefined {
    const root = sql.deadTree.get({ before: step.now - recordsKept })?.root;
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
    return { outputs: await outputs.unwrittenSince(now() - partsKept) };
  };
}

const day = 86_400_000;
const logKept = day;
const partsKept = 7 * day;
const recordsKept = 30 * day;
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
