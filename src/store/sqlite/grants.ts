import type { DatabaseSync } from "node:sqlite";
import { fromBinary, toBinary } from "@bufbuild/protobuf";
import {
  type DecisionRecord,
  type Grant,
  GrantSchema,
  GrantScope,
} from "../../../gen/opencode/tool/v1/permission_pb.ts";
import type { GrantFilter, GrantStore } from "../../approval/ports.ts";
import type { CallRef } from "../../core/call-ref.ts";
import { useLength, useOf, withLeft, withUse } from "../grant-uses.ts";
import { sealed, unsealed } from "../parts.ts";
import type { SqliteAudit } from "./audit.ts";
import type { Step } from "./commit.ts";
import { statementsOf } from "./database.ts";
import type { SqliteLog } from "./log.ts";
import type { SqliteSessions } from "./sessions.ts";

/** Saves, finds and revokes grants. */
export function createSqliteGrants(options: {
  db: DatabaseSync;
  sessions: SqliteSessions;
  log: SqliteLog;
  audit: SqliteAudit;
}) {
  const { sessions, log, audit } = options;
  const sql = prepare(options.db);

  function get(id: string): Grant | undefined {
    const row = sql.one.get(id);
    return row === undefined ? undefined : decode(row);
  }

  /** Emits the event in the root session of the tree that created the grant, if it still exists. */
  function emit(step: Step, grant: Grant, event: "granted" | "revoked"): void {
    if (sessions.find(grant.sessionId) !== undefined) log.append(step, grant.sessionId, { case: event, value: grant });
  }

  return {
    get,

    /** Saves a grant; the tree that created it becomes its first user. */
    save(step: Step, grant: Grant): void {
      const { id, scope, sessionId: root, workspace, agent, expires, revoked, times } = grant;
      const sealedGrant = sealed(toBinary(GrantSchema, grant));
      sql.insert.run(id, scope, root, workspace, agent, expires, revoked, times, ...sealedGrant);
      sql.adopt.run(id, root);
      sessions.raiseRulesVersion(root);
      emit(step, grant, "granted");
    },

    serving(now: number, { call, ...tree }: Parameters<GrantStore["grantsFor"]>[0]): Grant[] {
      const use = call && useOf(call);
      return sql.serving.all({ now, use: use ?? null, ...tree }).map((row) => decode(row, use));
    },

    /** Takes a use of each of these grants for a call, which has one at most. Returns false, and takes none, if one has none left. */
    take(step: Step, ids: readonly string[], call: CallRef): boolean {
      const use = useOf(call);
      const taken = ids.map((id) => {
        const { uses = "", times = 0 } = sql.uses.get(id) ?? {};
        return { id, uses: withUse(uses, use, times) };
      });
      if (taken.some(({ uses }) => uses === undefined)) return false;
      for (const { id, uses = "" } of taken) sql.take.run(uses, step.now, id);
      return true;
    },

    adopt(step: Step, root: string, id: string): boolean {
      if (sql.living.get(id, step.now) === undefined) return false;
      sql.adopt.run(id, root);
      return true;
    },

    list(now: number, filter: GrantFilter): Grant[] {
      const { tree, includeDead, before = null, limit } = filter;
      const page = { now, includeDead: includeDead ? 1 : 0, before, limit };
      const rows = tree === undefined ? sql.list.all(page) : sql.listOfTree.all({ ...page, ...tree });
      return rows.map((row) => decode(row));
    },

    /** Sets the last use of the grants that a call starts with. */
    use(step: Step, ids: readonly string[]): void {
      for (const id of ids) sql.use.run(step.now, id);
    },

    /** Lets a suspended grant serve again. */
    confirm(step: Step, id: string, decisions: readonly DecisionRecord[] = []): Grant | undefined {
      const found = get(id);
      if (found === undefined || found.suspended === 0) return found;
      const grant = { ...found, suspended: 0 };
      sql.suspend.run(0, id);
      sql.raiseUsers.run(id);
      emit(step, grant, "granted");
      audit.append(step, grant.sessionId, decisions);
      return grant;
    },

    /** Suspends all living grants; returns their number. */
    suspendAll(step: Step): number {
      sql.raiseAllUsers.run();
      return Number(sql.suspendAll.run({ now: step.now }).changes);
    },

    /** Revokes a grant. Invalidates the decisions of its users even if it is already dead. */
    revoke(step: Step, id: string, decisions: readonly DecisionRecord[] = []): Grant | undefined {
      const found = get(id);
      if (found === undefined) return undefined;
      sql.raiseUsers.run(id);
      if (found.revoked > 0) return found;
      const grant = { ...found, revoked: step.now };
      sql.revoke.run(step.now, ...sealed(toBinary(GrantSchema, grant)), id);
      emit(step, grant, "revoked");
      audit.append(step, grant.sessionId, decisions);
      return grant;
    },
  };
}

interface Row {
  used: number;
  suspended: number;
  uses: string;
  grant: Uint8Array;
  crc: number | null;
}

function decode({ used, suspended, uses, grant, crc }: Row, use?: string): Grant {
  const saved = { ...fromBinary(GrantSchema, unsealed(grant, crc, "a grant")), lastUsed: used, suspended };
  return withLeft(saved, uses, use);
}

function prepare(db: DatabaseSync) {
  const statement = statementsOf(db);
  const { SESSION, AGENT, PROJECT } = GrantScope;
  const living = "revoked = 0 AND (expires = 0 OR expires > :now)";
  const isLeft = `times = 0 OR length(uses) < times * ${useLength}`;
  const select = 'SELECT used, suspended, uses, "grant", grant_crc AS crc FROM grants WHERE';
  const page = `(:includeDead = 1 OR ${living} AND (${isLeft})) AND ordinal < coalesce((SELECT ordinal FROM grants WHERE id = :before), 9e18)
    ORDER BY ordinal DESC LIMIT :limit`;
  return {
    one: statement<Row>(`${select} id = ?`),
    insert: statement(
      'INSERT INTO grants (id, scope, root, workspace, agent, expires, revoked, times, "grant", grant_crc) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)',
    ),
    living: statement<{ id: string }>(
      "SELECT id FROM grants WHERE id = ? AND suspended = 0 AND revoked = 0 AND (expires = 0 OR expires > ?)",
    ),
    serving: statement<Row>(
      `${select} suspended = 0 AND ${living} AND (root = :root AND scope = ${SESSION} OR workspace = :workspace
         AND (scope = ${PROJECT} OR scope = ${AGENT} AND agent = :agent)) AND (${isLeft} OR instr(uses, :use) > 0) ORDER BY ordinal`,
    ),
    uses: statement<{ uses: string; times: number }>("SELECT uses, times FROM grants WHERE id = ?"),
    take: statement("UPDATE grants SET uses = ?, used = ? WHERE id = ?"),
    list: statement<Row>(`${select} ${page}`),
    listOfTree: statement<Row>(
      `${select} (root = :root AND scope = ${SESSION}
         OR workspace = :workspace AND scope IN (${AGENT}, ${PROJECT})) AND ${page}`,
    ),
    adopt: statement("INSERT OR IGNORE INTO grant_users (grant_id, root) VALUES (?, ?)"),
    use: statement("UPDATE grants SET used = ? WHERE id = ?"),
    revoke: statement('UPDATE grants SET revoked = ?, "grant" = ?, grant_crc = ? WHERE id = ?'),
    suspend: statement("UPDATE grants SET suspended = ? WHERE id = ?"),
    suspendAll: statement(`UPDATE grants SET suspended = :now WHERE suspended = 0 AND ${living}`),
    raiseAllUsers: statement(
      "UPDATE sessions SET rules_version = rules_version + 1 WHERE id IN (SELECT root FROM grant_users)",
    ),
    raiseUsers: statement(
      `UPDATE sessions SET rules_version = rules_version + 1
       WHERE id IN (SELECT root FROM grant_users WHERE grant_id = ?)`,
    ),
  };
}
