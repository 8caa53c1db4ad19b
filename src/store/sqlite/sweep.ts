import type { DatabaseSync } from "node:sqlite";
import { create, toBinary } from "@bufbuild/protobuf";
import { SessionEventSchema } from "../../../gen/opencode/tool/v1/event_pb.ts";
import { GrantScope } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import type { Logger } from "../../core/logger.ts";
import { useLength } from "../grant-uses.ts";
import { sealed, tombstone, unlessDamaged } from "../parts.ts";
import {
  countRemoved,
  logRetentionMs,
  partRetentionMs,
  type RemovedCounts,
  recordRetentionMs,
  removedInWords,
  removedKinds,
} from "../retention.ts";
import { decodeSqlitePart } from "./call-records.ts";
import type { SqliteTables } from "./call-statements.ts";
import type { SqliteClock } from "./clock.ts";
import type { Commit, DatabaseHealth, Step } from "./commit.ts";
import { statementsOf } from "./database.ts";
import { giveBackPages, truncateLog } from "./disk-space.ts";
import type { OutputFiles } from "./outputs.ts";

/** Creates the function that removes records past their retention, in portions, so that no other transition waits for long. */
export function createSqliteSweep(options: {
  tables: Pick<SqliteTables, "db" | "sessions" | "log" | "exports">;
  commit: Commit;
  health: Pick<DatabaseHealth, "refusalOf">;
  outputs: OutputFiles;
  clock: Pick<SqliteClock, "retentionNow" | "save">;
  log?: Logger | undefined;
  auditMs: number;
  auditMaxMs: number;
}): () => Promise<{ outputs: { root: string; id: string }[] }> {
  const { commit, health, outputs, clock, auditMs, auditMaxMs } = options;
  const now = clock.retentionNow;
  const { db, sessions, log, exports } = options.tables;
  const sql = prepare(db);

  function dropParts(): Removed {
    const rows = sql.endedBefore.all(now() - partRetentionMs, portion);
    for (const { ordinal, ...stored } of rows) {
      sql.dropNotices.run(ordinal);
      sql.dropAsks.run(ordinal);
      const part = unlessDamaged(() => tombstone(decodeSqlitePart(stored)), health.refusalOf);
      const buried = part && create(SessionEventSchema, { event: { case: "part", value: part } });
      const [snapshot, crc] = buried
        ? sealed(toBinary(SessionEventSchema, buried))
        : [stored.snapshot, stored.snapshotCrc];
      sql.bury.run(snapshot, crc, ordinal);
    }
    return { results: rows.length, hasMore: rows.length === portion };
  }

  function dropTombstones(): Removed {
    const tombstones = Number(sql.dropTombstones.run(now() - recordRetentionMs, portion).changes);
    return { tombstones, hasMore: tombstones === portion };
  }

  function trimIdleLog(step: Step): Removed {
    const before = now() - logRetentionMs;
    const idle = sql.idle.get(before);
    if (idle === undefined) return { hasMore: false };
    const head = unlessDamaged(() => sessions.change(step, idle.id), health.refusalOf);
    if (head === undefined) {
      // It stays, and is not found again for a while: the logs of the others have to be trimmed.
      sql.setActive.run(now(), idle.id);
      return { hasMore: true };
    }
    head.active = unlessDamaged(() => log.timeOfLast(head), health.refusalOf) ?? head.active;
    const { trimmed } = head;
    if (head.active <= before) log.trim(head, Math.min(trimmed + logPortion, head.lastSeq));
    head.logged = head.trimmed < head.lastSeq;
    if (!head.logged) log.forget(head.id);
    sql.setActivity.run(head.active, head.logged ? 1 : 0, head.ordinal);
    return { events: head.trimmed - trimmed, hasMore: true };
  }

  function dropDeadGrants(): Removed {
    const { changes } = sql.dropDeadGrants.run({ before: now() - recordRetentionMs });
    sql.dropUsersOfNone.run();
    return { grants: Number(changes), hasMore: false };
  }

  /** Removes decisions from the beginning of their chains; the rest of a chain stays valid. Waits for receivers, up to a limit. */
  function trimAudit(): Removed {
    const end = now() - auditMaxMs;
    const old = sql.oldAudit.all({ before: now() - auditMs, end, limit: portion });
    for (const { root, seq, time } of old) {
      if (time <= end) exports.lose(root, seq);
      sql.dropDecision.run(root, seq);
    }
    return { decisions: old.length, hasMore: old.length === portion };
  }

  /** Removes a session tree that contains nothing but idle sessions; returns its root. */
  function dropTree(): string | undefined {
    const root = sql.deadTree.get({ before: now() - recordRetentionMs })?.root;
    if (root === undefined) return undefined;
    for (const { id } of sql.sessionsOf.all(root)) {
      sessions.forget(id);
      log.forget(id);
    }
    for (const drop of sql.dropTree) drop.run(root);
    return root;
  }

  return async () => {
    const total: RemovedCounts = {};
    for (const drop of [dropParts, dropTombstones, trimIdleLog, dropDeadGrants, trimAudit]) {
      for (let goesOn = true; goesOn; ) {
        const { hasMore, ...counts } = await commit.run(drop);
        for (const kind of removedKinds) countRemoved(total, kind, counts[kind] ?? 0);
        goesOn = hasMore;
      }
    }
    for (let root = await commit.run(dropTree); root !== undefined; root = await commit.run(dropTree)) {
      await outputs.removeTree(root);
      countRemoved(total, "trees", 1);
    }
    let gavePages = false;
    while (await commit.run(() => giveBackPages(db))) gavePages = true;
    if (gavePages) truncateLog(db);
    const stale = await outputs.unwrittenSince(now() - partRetentionMs);
    // An approver still reads what an open request names.
    const unwritten = stale.filter(({ root }) => sql.asksOfTree.get(root)?.open !== 1);
    total.outputs = unwritten.length;
    await commit.run(() => {
      clock.save();
      exports.sweep();
    });
    const words = removedInWords(total);
    if (words !== "") options.log?.info(`removed after their retention time: ${words}`);
    return { outputs: unwritten };
  };
}

/** Numbers of records that a transition removed, and whether there may be more of them. */
type Removed = RemovedCounts & { hasMore: boolean };

const portion = 200;
const logPortion = 5_000;

function prepare(db: DatabaseSync) {
  const statement = statementsOf(db);
  return {
    endedBefore: statement<{ ordinal: number; snapshot: Uint8Array; snapshotCrc: number | null }>(
      "SELECT ordinal, snapshot, snapshot_crc AS snapshotCrc FROM calls WHERE expired = 0 AND ended <= ? ORDER BY ended LIMIT ?",
    ),
    dropNotices: statement("DELETE FROM notices WHERE ask IN (SELECT id FROM asks WHERE call = ?)"),
    dropAsks: statement("DELETE FROM asks WHERE call = ?"),
    bury: statement("UPDATE calls SET expired = 1, snapshot = ?, snapshot_crc = ? WHERE ordinal = ?"),
    dropTombstones: statement(
      "DELETE FROM calls WHERE ordinal IN (SELECT ordinal FROM calls WHERE expired = 1 AND ended <= ? ORDER BY ended LIMIT ?)",
    ),
    idle: statement<{ id: string }>(
      `SELECT id FROM sessions s WHERE logged = 1 AND active <= ? AND NOT EXISTS (
         SELECT 1 FROM asks WHERE asks.root = s.root AND settled IS NULL) LIMIT 1`,
    ),
    asksOfTree: statement<{ open: number }>(
      "SELECT EXISTS (SELECT 1 FROM asks WHERE root = ? AND settled IS NULL) AS open",
    ),
    setActive: statement("UPDATE sessions SET active = ? WHERE id = ?"),
    setActivity: statement("UPDATE sessions SET active = ?, logged = ? WHERE ordinal = ?"),
    dropDeadGrants: statement(
      `DELETE FROM grants WHERE revoked > 0 AND revoked <= :before OR expires > 0 AND expires <= :before
         OR times > 0 AND length(uses) >= times * ${useLength} AND used <= :before`,
    ),
    oldAudit: statement<{ root: string; seq: number; time: number }>(
      `SELECT root, seq, time FROM decisions d WHERE time <= :before AND (time <= :end OR NOT EXISTS (
         SELECT 1 FROM receivers r LEFT JOIN exports e ON e.receiver = r.receiver AND e.root = d.root
         WHERE coalesce(e.seq, 0) < d.seq)) ORDER BY time LIMIT :limit`,
    ),
    dropDecision: statement("DELETE FROM decisions WHERE root = ? AND seq = ?"),
    dropUsersOfNone: statement("DELETE FROM grant_users WHERE grant_id NOT IN (SELECT id FROM grants)"),
    deadTree: statement<{ root: string }>(
      // Only of roots, so that the sessions of a tree in use are not read once for each of them.
      `SELECT root FROM sessions s WHERE logged = 0 AND active <= :before AND id = root AND NOT EXISTS (
         SELECT 1 FROM sessions o WHERE o.root = s.root AND (logged = 1 OR active > :before
           OR EXISTS (SELECT 1 FROM calls WHERE calls.session = o.ordinal))) LIMIT 1`,
    ),
    sessionsOf: statement<{ id: string }>("SELECT id FROM sessions WHERE root = ?"),
    dropTree: [
      statement(`DELETE FROM grants WHERE root = ? AND scope = ${GrantScope.SESSION}`),
      statement("DELETE FROM grant_users WHERE root = ?"),
      statement("DELETE FROM reads WHERE root = ?"),
      statement("DELETE FROM states WHERE session IN (SELECT id FROM sessions WHERE root = ?)"),
      statement("DELETE FROM sessions WHERE root = ?"),
    ],
  };
}
