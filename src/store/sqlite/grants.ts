import type { DatabaseSync } from "node:sqlite";
import { fromBinary, toBinary } from "@bufbuild/protobuf";
import {
  type DecisionRecord,
  type Grant,
  GrantSchema,
  GrantScope,
} from "../../../gen/opencode/tool/v1/permission_pb.ts";
import type { GrantFilter } from "../../approval/ports.ts";
import type { SqliteAudit } from "./audit.ts";
import type { Step } from "./commit.ts";
import { statement } from "./database.ts";
import type { SqliteLog } from "./log.ts";
import type { SqliteSessions } from "./sessions.ts";

/** The grants of a store. */
export type SqliteGrants = ReturnType<typeof createSqliteGrants>;

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
      const { id, scope, sessionId: root, workspace, agent, expires, revoked } = grant;
      sql.insert.run(id, scope, root, workspace, agent, expires, revoked, toBinary(GrantSchema, grant));
      sql.adopt.run(id, root);
      sessions.raiseRulesVersion(root);
      emit(step, grant, "granted");
    },

    serving(now: number, tree: { root: string; workspace: string; agent: string }): Grant[] {
      return sql.serving.all({ now, ...tree }).map(decode);
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
      return rows.map(decode);
    },

    /** Sets the last use of the grants that a call starts with. */
    use(step: Step, ids: readonly string[]): void {
      for (const id of ids) sql.use.run(step.now, id);
    },

    /** Revokes a grant. Invalidates the decisions of its users even if it is already dead. */
    revoke(step: Step, id: string, decisions: readonly DecisionRecord[] = []): Grant | undefined {
      const found = get(id);
      if (found === undefined) return undefined;
      sql.raiseUsers.run(id);
      if (found.revoked > 0) return found;
      const grant = { ...found, revoked: step.now };
      sql.revoke.run(step.now, toBinary(GrantSchema, grant), id);
      emit(step, grant, "revoked");
      audit.append(step, grant.sessionId, decisions);
      return grant;
    },
  };
}

interface Row {
  used: number;
  grant: Uint8Array;
}

const decode = ({ used, grant }: Row): Grant => ({ ...fromBinary(GrantSchema, grant), lastUsed: used });

function prepare(db: DatabaseSync) {
  const { SESSION, AGENT, PROJECT } = GrantScope;
  const living = "revoked = 0 AND (expires = 0 OR expires > :now)";
  const page = `(:includeDead = 1 OR ${living}) AND ordinal < coalesce((SELECT ordinal FROM grants WHERE id = :before), 9e18)
    ORDER BY ordinal DESC LIMIT :limit`;
  return {
    one: statement<Row>(db, 'SELECT used, "grant" FROM grants WHERE id = ?'),
    insert: statement(
      db,
      'INSERT INTO grants (id, scope, root, workspace, agent, expires, revoked, "grant") VALUES (?, ?, ?, ?, ?, ?, ?, ?)',
    ),
    living: statement<{ id: string }>(
      db,
      "SELECT id FROM grants WHERE id = ? AND revoked = 0 AND (expires = 0 OR expires > ?)",
    ),
    serving: statement<Row>(
      db,
      `SELECT used, "grant" FROM grants WHERE ${living} AND (root = :root AND scope = ${SESSION} OR workspace = :workspace
         AND (scope = ${PROJECT} OR scope = ${AGENT} AND agent = :agent)) ORDER BY ordinal`,
    ),
    list: statement<Row>(db, `SELECT used, "grant" FROM grants WHERE ${page}`),
    listOfTree: statement<Row>(
      db,
      `SELECT used, "grant" FROM grants WHERE (root = :root AND scope = ${SESSION}
         OR workspace = :workspace AND scope IN (${AGENT}, ${PROJECT})) AND ${page}`,
    ),
    adopt: statement(db, "INSERT OR IGNORE INTO grant_users (grant_id, root) VALUES (?, ?)"),
    use: statement(db, "UPDATE grants SET used = ? WHERE id = ?"),
    revoke: statement(db, 'UPDATE grants SET revoked = ?, "grant" = ? WHERE id = ?'),
    raiseUsers: statement(
      db,
      `UPDATE sessions SET rules_version = rules_version + 1
       WHERE id IN (SELECT root FROM grant_users WHERE grant_id = ?)`,
    ),
  };
}
