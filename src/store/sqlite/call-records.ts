import type { DatabaseSync } from "node:sqlite";
import { fromBinary } from "@bufbuild/protobuf";
import { SessionEventSchema } from "../../../gen/opencode/tool/v1/event_pb.ts";
import type { ToolPart } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import type { CallFilter, CallRecord, CallSpec } from "../../call/ports.ts";
import type { CallRef } from "../../core/call-ref.ts";
import { DamagedRecord, type NoteDamage, sealed, unlessDamaged, unsealed } from "../parts.ts";
import { statementsOf } from "./database.ts";
import type { OpenCallRow, OpenCallTable } from "./open-calls.ts";
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
  memo: string | null;
  cancel: string | null;
  assignment: string | null;
  remote: string | null;
  queuedUntil: number | null;
  expired: number;
  spec: string;
  specCrc: number | null;
  snapshot: Uint8Array;
  snapshotCrc: number | null;
}

/** A stored spec, and a stored snapshot, with their checksums. */
export type StoredSpec = Pick<CallColumns, "spec" | "specCrc">;
type StoredSnapshot = Pick<CallColumns, "snapshot" | "snapshotCrc">;

/** The selected columns of `CallColumns`. */
const callColumns =
  "calls.ordinal, call_id AS callId, opened, version, epoch, attempts, repeats, prepared, hooked, memo, cancel, assignment, remote, queued_until AS queuedUntil, expired, spec, spec_crc AS specCrc, snapshot, snapshot_crc AS snapshotCrc";

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
  const statement = statementsOf(db);
  const one = statement<CallColumns>(`${select} AND call_id = :callId`);
  const list = statement<CallColumns>(`${select} AND ordinal > :from ORDER BY ordinal LIMIT :limit`);
  const placeOf = statement<{ ordinal: number }>(
    `SELECT coalesce((SELECT ordinal FROM calls WHERE session = :session AND call_id = :callId),
       (SELECT max(ordinal) FROM calls WHERE session = :session AND opened < :openedSeq), 0) AS ordinal`,
  );
  const assigned = statement<CallColumns & { id: string; root: string }>(
    `SELECT ${callColumns}, id, root FROM calls JOIN sessions ON sessions.ordinal = calls.session WHERE assignment = ? AND expired = 0`,
  );
  const specOf = statement<StoredSpec>("SELECT spec, spec_crc AS specCrc FROM calls WHERE ordinal = ?");
  const setSpec = statement("UPDATE calls SET spec = ?, spec_crc = ? WHERE ordinal = ?");
  const openAsks = statement<{ id: string }>("SELECT id FROM asks WHERE call = ? AND settled IS NULL ORDER BY ordinal");

  /** Returns the last snapshot of a call, with the asks that are open now. */
  function snapshot({ ordinal, ...stored }: Pick<CallColumns, "ordinal"> & StoredSnapshot): ToolPart {
    return { ...decodeSqlitePart(stored), permissionIds: openAsks.all(ordinal).map(({ id }) => id) };
  }

  function record(ref: CallRef, row: CallColumns): CallRecord {
    const open = openCalls.get(ref);
    const part = snapshot(row);
    // A damaged index finds the record of another call.
    if (part.callId !== ref.callId) throw new DamagedRecord(`the record of call ${ref.callId} is that of another one`);
    return {
      ref,
      part,
      spec: decodeSqliteSpec(row),
      openedSeq: row.opened,
      version: row.version,
      epoch: row.epoch,
      owner: open !== undefined && open.leaseUntil > now() ? open.owner : "",
      attempts: row.attempts,
      repeats: row.repeats,
      ...(row.prepared === 1 ? { prepared: true } : {}),
      ...(row.hooked === null ? {} : { hooked: row.hooked }),
      ...(row.memo === null ? {} : { memo: row.memo }),
      ...(row.cancel === null ? {} : { cancel: row.cancel }),
      ...(row.assignment === null ? {} : { assignment: row.assignment }),
      ...(row.remote === null ? {} : { remote: JSON.parse(row.remote) }),
      ...(row.queuedUntil === null ? {} : { queuedUntil: row.queuedUntil }),
      ...(row.expired === 1 ? { expired: true } : {}),
    };
  }

  function find(head: SessionHead, callId: string): CallRecord | undefined {
    const row = one.get({ session: head.ordinal, callId });
    return row === undefined ? undefined : record({ root: head.root, sessionId: head.id, callId }, row);
  }

  /** Lists open calls by the table in memory: rows of calls that have ended are not read, however many there are. */
  function listOpen(head: SessionHead, { from, limit }: { from: number; limit: number }): CallRecord[] {
    const open = openCalls.inSession(head.id).filter(({ ordinal }) => ordinal > from);
    return readAll(head, open.toSorted((one, other) => one.ordinal - other.ordinal).slice(0, limit));
  }

  function readAll(head: SessionHead, open: readonly OpenCallRow[]): CallRecord[] {
    return open.flatMap(({ ref }) => find(head, ref.callId) ?? []);
  }

  return {
    snapshot,
    find,

    /** Replaces the request data of a call. */
    rebind: (ordinal: number, spec: CallSpec) => void setSpec.run(...sealed(JSON.stringify(spec)), ordinal),

    /** Moves the time from which the age of a call counts. */
    postpone(ordinal: number, ms: number, note: NoteDamage): void {
      const row = specOf.get(ordinal);
      const spec = row && unlessDamaged(() => decodeSqliteSpec(row), note);
      if (spec === undefined) return;
      setSpec.run(...sealed(JSON.stringify({ ...spec, accepted: spec.accepted + ms })), ordinal);
    },

    get(sessionId: string, callId: string): CallRecord | undefined {
      const head = sessions.find(sessionId);
      return head === undefined ? undefined : find(head, callId);
    },

    findAssigned(assignment: string): CallRecord | undefined {
      const row = assigned.get(assignment);
      return row === undefined ? undefined : record({ root: row.root, sessionId: row.id, callId: row.callId }, row);
    },

    list({ sessionId, open = false, after, limit }: CallFilter): CallRecord[] {
      const head = sessions.find(sessionId);
      if (head === undefined) return [];
      const of = after && { session: head.ordinal, callId: after.ref.callId, openedSeq: after.openedSeq };
      const from = (of && placeOf.get(of)?.ordinal) ?? 0;
      if (open) return listOpen(head, { from, limit });
      const rows = list.all({ session: head.ordinal, from, limit });
      return rows.map((row) => record({ root: head.root, sessionId, callId: row.callId }, row));
    },

    findDelegated(sessionId: string, requestDigest: string): CallRecord[] {
      const head = sessions.find(sessionId);
      if (head === undefined) return [];
      return readAll(
        head,
        openCalls.inSession(sessionId).filter(({ request }) => request === requestDigest),
      );
    },
  };
}

/** Decodes the part in a snapshot, which is stored as the event that emitted it, so that it is encoded once. */
export function decodeSqlitePart({ snapshot, snapshotCrc }: StoredSnapshot): ToolPart {
  const { event } = fromBinary(SessionEventSchema, unsealed(snapshot, snapshotCrc, "the part of a call"));
  if (event.case !== "part")
    throw new Error(`a call's snapshot holds ${event.case ?? "nothing"} where a part should be`);
  return event.value;
}

/** Parses a stored `CallSpec`. */
export function decodeSqliteSpec({ spec, specCrc }: StoredSpec): CallSpec {
  return JSON.parse(unsealed(spec, specCrc, "the request of a call"));
}
