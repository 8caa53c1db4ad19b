import type { DatabaseSync } from "node:sqlite";
import { fromBinary, toBinary } from "@bufbuild/protobuf";
import { type Session, SessionSchema } from "../../../gen/opencode/tool/v1/session_service_pb.ts";
import { setNewest } from "../../core/bounded-map.ts";
import { noSuchSession } from "../../core/request-error.ts";
import { sealed, unsealed } from "../parts.ts";
import { sessionClosed } from "../refusals.ts";
import type { Step } from "./commit.ts";
import { statementsOf } from "./database.ts";

/** Current state of a session, as every transition in it needs it; cached while the session is in use. */
export interface SessionHead {
  readonly ordinal: number;
  readonly id: string;
  readonly root: string;
  readonly parent: string;
  /** The session as created. */
  readonly session: Session;
  closed: number;
  /** Sequence number of the last event, and the size of all events up to it. */
  lastSeq: number;
  totalBytes: number;
  /** The same for the last event that was trimmed. */
  trimmed: number;
  trimmedBytes: number;
  /** True if the log has events, and the approximate time of the last one. */
  logged: boolean;
  active: number;
  /** Request digest of the last accepted call, and its repeats; absent until first needed. */
  latest?: { request: string; repeats: number };
  /** Last link of the tree's audit, in the head of its root; absent until one was appended. */
  decided?: { seq: number; hash: string };
}

/** The sessions of a store. */
export type SqliteSessions = ReturnType<typeof createSqliteSessions>;

/** Reads and writes sessions; caches the heads of those in use. */
export function createSqliteSessions(db: DatabaseSync, checkSpace: () => void) {
  const sql = prepare(db);
  // In order of use, the latest last.
  const heads = new Map<string, SessionHead>();

  function find(id: string): SessionHead | undefined {
    const head = heads.get(id) ?? load(id);
    if (head === undefined) return undefined;
    setNewest(heads, id, head, maxHeads);
    return head;
  }

  function load(id: string): SessionHead | undefined {
    const row = sql.load.get(id);
    if (row === undefined) return undefined;
    const { crc, ...columns } = row;
    const session = fromBinary(SessionSchema, unsealed(row.session, crc, `session ${id}`));
    return { ...columns, session, logged: row.logged === 1 };
  }

  function need(id: string): SessionHead {
    const head = find(id);
    if (head === undefined) throw noSuchSession(id);
    return head;
  }

  /** Returns the head for a change together with its row; a rollback drops it from the cache. */
  function change(step: Step, id: string): SessionHead {
    const head = need(id);
    step.onRollback(() => heads.delete(id));
    return head;
  }

  return {
    find,
    need,
    change,

    /** Drops a removed session from the cache. */
    forget: (id: string) => heads.delete(id),

    create(step: Step, session: Session): Session {
      const existing = find(session.id);
      if (existing !== undefined) return snapshot(existing);
      checkSpace();
      const { id, parentSessionId: parent, owner } = session;
      const above = parent === "" ? undefined : need(parent);
      if (above !== undefined && above.closed > 0) throw sessionClosed(parent);
      const root = above?.root ?? id;
      const stored = { ...session, rootSessionId: root };
      sql.insert.run(id, root, parent, owner, session.created, ...sealed(toBinary(SessionSchema, stored)));
      return snapshot(change(step, id));
    },

    get(id: string): Session | undefined {
      const head = find(id);
      return head === undefined ? undefined : snapshot(head);
    },

    list(filter: { owner?: string; root?: string; before?: string; limit: number }): Session[] {
      const { owner, root = null, before = null, limit } = filter;
      const rows =
        owner !== undefined
          ? sql.listByOwner.all({ owner, root, before, limit })
          : root !== null
            ? sql.listByRoot.all({ root, before, limit })
            : sql.list.all({ before, limit });
      return rows.map(({ id }) => snapshot(need(id)));
    },

    /** Marks the session and its descendants closed and returns their ids. */
    close(step: Step, id: string): string[] {
      need(id);
      const ids = sql.descendants.all(id).map((row) => row.id);
      for (const each of ids) {
        const head = change(step, each);
        if (head.closed > 0) continue;
        head.closed = step.now;
        sql.close.run(step.now, head.ordinal);
        step.notify(each, head.lastSeq + 1);
      }
      return ids;
    },

    /** Returns the version of the grants that serve a tree, and of the asks it has opened. */
    versions: (root: string) => sql.versions.get(root) ?? { rulesVersion: 0, asksVersion: 0 },
    raiseAsksVersion: (root: string) => void sql.raiseAsksVersion.run(root),
    raiseRulesVersion: (root: string) => void sql.raiseRulesVersion.run(root),

    getRead: (root: string, path: string) => sql.getRead.get(root, path)?.sha256,
    getState: (sessionId: string, name: string) => sql.getState.get(sessionId, name)?.value,
    setState: (sessionId: string, name: string, value: string) => void sql.setState.run(sessionId, name, value),
    recordRead: (root: string, path: string, sha256: string) => void sql.recordRead.run(root, path, sha256),
  };
}

const maxHeads = 4_096;

function snapshot(head: SessionHead): Session {
  return { ...head.session, closed: head.closed, lastSeq: BigInt(head.lastSeq) };
}

type Row = Omit<SessionHead, "session" | "logged"> & { session: Uint8Array; crc: number | null; logged: number };

function prepare(db: DatabaseSync) {
  const statement = statementsOf(db);
  const page =
    "ordinal < coalesce((SELECT ordinal FROM sessions WHERE id = :before), 9e18) ORDER BY ordinal DESC LIMIT :limit";
  return {
    load: statement<Row>(
      `SELECT ordinal, id, root, parent, s.session, session_crc AS crc, closed, trimmed, trimmed_bytes AS trimmedBytes, logged, active,
         coalesce(seq, trimmed) AS lastSeq, coalesce(total, trimmed_bytes) AS totalBytes
       FROM sessions s LEFT JOIN log ON log.session = s.ordinal
         AND seq = (SELECT max(seq) FROM log WHERE log.session = s.ordinal)
       WHERE id = ?`,
    ),
    insert: statement(
      "INSERT INTO sessions (id, root, parent, owner, active, session, session_crc) VALUES (?, ?, ?, ?, ?, ?, ?)",
    ),
    list: statement<{ id: string }>(`SELECT id FROM sessions WHERE ${page}`),
    listByOwner: statement<{ id: string }>(
      `SELECT id FROM sessions WHERE owner = :owner AND (:root IS NULL OR root = :root) AND ${page}`,
    ),
    listByRoot: statement<{ id: string }>(`SELECT id FROM sessions WHERE root = :root AND ${page}`),
    descendants: statement<{ id: string }>(
      `WITH RECURSIVE tree (id) AS (VALUES (?) UNION ALL SELECT s.id FROM sessions s JOIN tree ON s.parent = tree.id)
       SELECT id FROM tree`,
    ),
    close: statement("UPDATE sessions SET closed = ? WHERE ordinal = ?"),
    versions: statement<{ rulesVersion: number; asksVersion: number }>(
      "SELECT rules_version AS rulesVersion, asks_version AS asksVersion FROM sessions WHERE id = ?",
    ),
    raiseAsksVersion: statement("UPDATE sessions SET asks_version = asks_version + 1 WHERE id = ?"),
    raiseRulesVersion: statement("UPDATE sessions SET rules_version = rules_version + 1 WHERE id = ?"),
    getState: statement<{ value: string }>("SELECT value FROM states WHERE session = ? AND name = ?"),
    setState: statement("INSERT OR REPLACE INTO states (session, name, value) VALUES (?, ?, ?)"),
    getRead: statement<{ sha256: string }>("SELECT sha256 FROM reads WHERE root = ? AND path = ?"),
    recordRead: statement("INSERT OR REPLACE INTO reads (root, path, sha256) VALUES (?, ?, ?)"),
  };
}
