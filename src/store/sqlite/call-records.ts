import type { DatabaseSync } from "node:sqlite";
import { fromBinary } from "@bufbuild/protobuf";
import { SessionEventSchema } from "../../../gen/opencode/tool/v1/event_pb.ts";
import type { ToolPart } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import type { CallRecord, CallSpec } from "../../call/ports.ts";
import type { CallRef } from "../../core/call-ref.ts";
import { statement } from "./database.ts";
import type { OpenCallTable } from "./open-calls.ts";
import type { SessionHead, SqliteSessions } from "./sessions.ts";

/** A row of `calls`. */
export interface CallColumns {
  ordinal: number;
  callId: string;
  opened: number;
  version: number;
  epoch: number;
  attempts: number;
  repeats: number;
  prepared: number;
  hooked: string | null;
  cancel: string | null;
  assignment: string | null;
  expired: number;
  spec: string;
  snapshot: Uint8Array;
}

/** The selected columns of `CallColumns`. */
export const callColumns =
  "calls.ordinal, call_id AS callId, opened, version, epoch, attempts, repeats, prepared, hooked, cancel, assignment, expired, spec, snapshot";

/** Reads of stored calls. */
export type SqliteCallRecords = ReturnType<typeof createSqliteCallRecords>;

/** Creates the reads of calls. */
export function createSqliteCallRecords(options: {
  db: DatabaseSync;
  sessions: SqliteSessions;
  openCalls: OpenCallTable;
  now: () => number;
}) {
  const { db, sessions, openCalls, now } = options;
  const select = `SELECT ${callColumns} FROM calls WHERE session = :session`;
  const page =
    "ordinal > coalesce((SELECT ordinal FROM calls WHERE session = :session AND call_id = :after), 0) ORDER BY ordinal LIMIT :limit";
  const one = statement<CallColumns>(db, `${select} AND call_id = :callId`);
  const list = statement<CallColumns>(db, `${select} AND ${page}`);
  const listOpen = statement<CallColumns>(db, `${select} AND expired = 0 AND ended IS NULL AND ${page}`);
  const assigned = statement<CallColumns & { id: string; root: string }>(
    db,
    `SELECT ${callColumns}, id, root FROM calls JOIN sessions ON sessions.ordinal = calls.session WHERE assignment = ? AND expired = 0`,
  );
  const openAsks = statement<{ id: string }>(
    db,
    "SELECT id FROM asks WHERE call = ? AND settled IS NULL ORDER BY ordinal",
  );

  /** Returns the last snapshot of a call, with the asks that are open now. */
  function snapshot({ ordinal, snapshot }: Pick<CallColumns, "ordinal" | "snapshot">): ToolPart {
    return { ...decodeSqlitePart(snapshot), permissionIds: openAsks.all(ordinal).map(({ id }) => id) };
  }

  function record(ref: CallRef, row: CallColumns): CallRecord {
    const open = openCalls.get(ref);
    return {
      ref,
      part: snapshot(row),
      spec: decodeSqliteSpec(row.spec),
      openedSeq: row.opened,
      version: row.version,
      epoch: row.epoch,
      owner: open !== undefined && open.leaseUntil > now() ? open.owner : "",
      attempts: row.attempts,
      repeats: row.repeats,
      ...(row.prepared === 1 ? { prepared: true } : {}),
      ...(row.hooked === null ? {} : { hooked: row.hooked }),
      ...(row.cancel === null ? {} : { cancel: row.cancel }),
      ...(row.assignment === null ? {} : { assignment: row.assignment }),
      ...(row.expired === 1 ? { expired: true } : {}),
    };
  }

  function find(head: SessionHead, callId: string): CallRecord | undefined {
    const row = one.get({ session: head.ordinal, callId });
    return row === undefined ? undefined : record({ root: head.root, sessionId: head.id, callId }, row);
  }

  return {
    snapshot,
    find,

    get(sessionId: string, callId: string): CallRecord | undefined {
      const head = sessions.find(sessionId);
      return head === undefined ? undefined : find(head, callId);
    },

    findAssigned(assignment: string): CallRecord | undefined {
      const row = assigned.get(assignment);
      return row === undefined ? undefined : record({ root: row.root, sessionId: row.id, callId: row.callId }, row);
    },

    list({ sessionId, open = false, after = "", limit }: ListFilter): CallRecord[] {
      const head = sessions.find(sessionId);
      if (head === undefined) return [];
      const rows = (open ? listOpen : list).all({ session: head.ordinal, after, limit });
      return rows.map((row) => record({ root: head.root, sessionId, callId: row.callId }, row));
    },
  };
}

interface ListFilter {
  sessionId: string;
  open?: boolean;
  after?: string;
  limit: number;
}

/** Decodes the part in a snapshot, which is stored as the event that emitted it, so that it is encoded once. */
export function decodeSqlitePart(bytes: Uint8Array): ToolPart {
  const { event } = fromBinary(SessionEventSchema, bytes);
  if (event.case !== "part")
    throw new Error(`a call's snapshot holds ${event.case ?? "nothing"} where a part should be`);
  return event.value;
}

/** Parses a stored `CallSpec`. */
export function decodeSqliteSpec(text: string): CallSpec {
  return JSON.parse(text);
}
