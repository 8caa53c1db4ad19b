import type { DatabaseSync } from "node:sqlite";
import { create, fromBinary, toBinary } from "@bufbuild/protobuf";
import {
  PermissionOutcome,
  type PermissionSettled,
  PermissionSettledSchema,
} from "../../../gen/opencode/tool/v1/permission_pb.ts";
import { type PermissionRequest, PermissionRequestSchema } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import type { AskRecord, OpenFilter } from "../../approval/ports.ts";
import type { CallRef } from "../../core/call-ref.ts";
import { nextEscalation } from "../../core/current-need.ts";
import { escalatedEvent, type NoteDamage, postponed, sealed, unlessDamaged, unsealed, votedEvent } from "../parts.ts";
import { createRecentRequests } from "../recent-requests.ts";
import { decodeSqliteSpec, type SqliteCallRecords } from "./call-records.ts";
import type { Step } from "./commit.ts";
import { statementsOf } from "./database.ts";
import type { SqliteLog } from "./log.ts";
import type { SqliteNotices } from "./notices.ts";
import type { OpenCallRow } from "./open-calls.ts";

/** Opens, settles and reads asks. The transitions check the guards. */
export function createSqliteAsks({
  db,
  log,
  records,
  notices,
}: {
  db: DatabaseSync;
  log: SqliteLog;
  records: SqliteCallRecords;
  notices: SqliteNotices;
}) {
  const sql = prepare(db);
  const recent = createRecentRequests((bytes) => fromBinary(PermissionRequestSchema, bytes));

  /** Writes how an ask ended, which makes its notices due again; emits it in its session and every ancestor. */
  function settle(step: Step, settled: PermissionSettled): void {
    notices.settle(step, settled.permissionId);
    sql.settle.run(...sealed(toBinary(PermissionSettledSchema, settled)), settled.permissionId);
    log.appendUpwards(step, settled.sessionId, { case: "permissionSettled", value: settled });
  }

  function record(row: AskRow): AskRecord {
    const call = { root: row.root, sessionId: row.session, callId: row.callId };
    const spec = decodeSqliteSpec(row);
    return {
      request: requestOf(row),
      ...settlementOf(row),
      principal: spec.principal,
      person: spec.person ?? spec.principal,
      definitionId: spec.definitionId,
      call,
      part: records.snapshot({ ordinal: row.call, snapshot: row.snapshot, snapshotCrc: row.snapshotCrc }),
      version: row.version,
    };
  }

  return {
    settle,

    open(step: Step, call: OpenCallRow, request: PermissionRequest): void {
      const { root, sessionId } = call.ref;
      const bytes = toBinary(PermissionRequestSchema, request);
      sql.insert.run(
        request.id,
        root,
        sessionId,
        call.ordinal,
        request.expires,
        ...sealed(bytes),
        nextEscalation(request) ?? null,
      );
      log.appendUpwards(step, sessionId, { case: "permissionAsked", value: request });
    },

    /** Stores the votes of a request that stays open; emits them in its session and every ancestor. */
    vote(step: Step, request: PermissionRequest): void {
      sql.vote.run(...sealed(toBinary(PermissionRequestSchema, request)), request.id);
      log.appendUpwards(step, request.sessionId, { case: "permissionVoted", value: votedEvent(request) });
    },

    /** Stores the steps that a request has taken; emits them in its session and every ancestor. */
    escalate(step: Step, request: PermissionRequest): void {
      const bytes = toBinary(PermissionRequestSchema, request);
      sql.escalate.run(...sealed(bytes), nextEscalation(request) ?? null, request.id);
      log.appendUpwards(step, request.sessionId, { case: "permissionEscalated", value: escalatedEvent(request) });
    },

    /** Withdraws the call's open asks, or only the named ones. */
    withdraw(step: Step, call: OpenCallRow, message: string, named?: readonly string[]): void {
      for (const { id } of sql.openOfCall.all(call.ordinal)) {
        if (named !== undefined && !named.includes(id)) continue;
        const settled = create(PermissionSettledSchema, {
          permissionId: id,
          sessionId: call.ref.sessionId,
          callId: call.ref.callId,
          outcome: PermissionOutcome.WITHDRAWN,
          message,
          time: step.now,
        });
        settle(step, settled);
      }
    },

    /** Returns the deadline of an ask, the time of its next step, and its settlement if it has one. */
    state(id: string): { expires: number; escalates: number | null; settled?: PermissionSettled } | undefined {
      const row = sql.state.get(id);
      if (row === undefined) return undefined;
      return { expires: row.expires, escalates: row.escalates, ...settlementOf(row) };
    },

    /** Returns the ids of the open asks of a call, by its ordinal. */
    openOfCall: (call: number): string[] => sql.openOfCall.all(call).map(({ id }) => id),

    countOpen: (root: string) => sql.countOpen.get(root)?.count ?? 0,

    get(sessionId: string, id: string): AskRecord | undefined {
      const row = sql.one.get(id, sessionId);
      return row === undefined ? undefined : record(row);
    },

    find(id: string): AskRecord | undefined {
      const row = sql.any.get(id);
      return row === undefined ? undefined : record(row);
    },

    ofCall: ({ sessionId, callId }: CallRef): AskRecord[] => sql.ofCall.all(sessionId, callId).map(record),

    listOpen: ({ root, after = "", limit }: OpenFilter): AskRecord[] =>
      (root === undefined ? sql.open.all({ after, limit }) : sql.openInTree.all({ root, after, limit })).map(record),

    listRequests: ({ root, after = "", limit }: OpenFilter): PermissionRequest[] =>
      (root === undefined ? sql.requests.all({ after, limit }) : sql.requestsInTree.all({ root, after, limit })).map(
        (row) => recent.decode(String(row.ordinal), checkedRequest(row)),
      ),

    countAll(): { count: number; oldest?: number } {
      const count = sql.countAll.get()?.count ?? 0;
      const [first] = count === 0 ? [] : sql.requests.all({ after: "", limit: 1 }).map(requestOf);
      return first === undefined ? { count } : { count, oldest: first.created };
    },

    countLong: (time: number) => sql.countLong.get(time)?.count ?? 0,

    /** Moves the deadlines and steps of all open asks. */
    postpone(ms: number, note: NoteDamage): void {
      for (const { ordinal, ...stored } of sql.openRequests.all()) {
        const asked = unlessDamaged(() => requestOf(stored), note);
        const [request, crc] = asked
          ? sealed(toBinary(PermissionRequestSchema, postponed(asked, ms)))
          : [stored.request, stored.requestCrc];
        sql.postpone.run({ ms, request, crc, ordinal });
      }
    },

    /** Lists the asks that are due, without damaged ones, which take no place of others. */
    due(now: number, limit: number, note: NoteDamage): AskRecord[] {
      const found: AskRecord[] = [];
      for (let offset = 0; found.length < limit; offset += limit) {
        const rows = sql.due.all({ now, limit, offset });
        found.push(...rows.flatMap((row) => unlessDamaged(() => record(row), note) ?? []));
        if (rows.length < limit) break;
      }
      return found.slice(0, limit);
    },
  };
}

interface AskRow {
  root: string;
  session: string;
  call: number;
  request: Uint8Array;
  requestCrc: number | null;
  settled: Uint8Array | null;
  settledCrc: number | null;
  callId: string;
  version: number;
  spec: string;
  specCrc: number | null;
  snapshot: Uint8Array;
  snapshotCrc: number | null;
}

type RequestRow = Pick<AskRow, "request" | "requestCrc">;

const checkedRequest = ({ request, requestCrc }: RequestRow) => unsealed(request, requestCrc, "a permission request");

const requestOf = (row: RequestRow): PermissionRequest => fromBinary(PermissionRequestSchema, checkedRequest(row));

function settlementOf({ settled, settledCrc }: Pick<AskRow, "settled" | "settledCrc">): {
  settled?: PermissionSettled;
} {
  if (settled === null) return {};
  return { settled: fromBinary(PermissionSettledSchema, unsealed(settled, settledCrc, "a settlement")) };
}

function prepare(db: DatabaseSync) {
  const statement = statementsOf(db);
  const select = `SELECT asks.root, asks.session, call, request, request_crc AS requestCrc, settled, settled_crc AS settledCrc,
      call_id AS callId, version, spec, spec_crc AS specCrc, snapshot, snapshot_crc AS snapshotCrc
    FROM asks JOIN calls ON calls.ordinal = asks.call WHERE`;
  const request = "SELECT ordinal, request, request_crc AS requestCrc FROM asks WHERE";
  const page =
    "asks.ordinal > coalesce((SELECT ordinal FROM asks WHERE id = :after), 0) ORDER BY asks.ordinal LIMIT :limit";
  return {
    insert: statement(
      "INSERT INTO asks (id, root, session, call, expires, request, request_crc, escalates) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
    ),
    settle: statement("UPDATE asks SET settled = ?, settled_crc = ? WHERE id = ? AND settled IS NULL"),
    vote: statement("UPDATE asks SET request = ?, request_crc = ? WHERE id = ? AND settled IS NULL"),
    escalate: statement("UPDATE asks SET request = ?, request_crc = ?, escalates = ? WHERE id = ?"),
    openRequests: statement<RequestRow & { ordinal: number }>(`${request} settled IS NULL`),
    postpone: statement(
      `UPDATE asks SET expires = expires + :ms, escalates = escalates + :ms, request = :request, request_crc = :crc
       WHERE ordinal = :ordinal`,
    ),
    openOfCall: statement<{ id: string }>("SELECT id FROM asks WHERE call = ? AND settled IS NULL ORDER BY ordinal"),
    state: statement<Pick<AskRow, "settled" | "settledCrc"> & { expires: number; escalates: number | null }>(
      "SELECT expires, escalates, settled, settled_crc AS settledCrc FROM asks WHERE id = ?",
    ),
    countOpen: statement<{ count: number }>("SELECT count(*) AS count FROM asks WHERE root = ? AND settled IS NULL"),
    countAll: statement<{ count: number }>("SELECT count(*) AS count FROM asks WHERE settled IS NULL"),
    countLong: statement<{ count: number }>("SELECT count(*) AS count FROM asks WHERE settled IS NULL AND expires > ?"),
    one: statement<AskRow>(`${select} asks.id = ? AND asks.session = ?`),
    any: statement<AskRow>(`${select} asks.id = ?`),
    ofCall: statement<AskRow>(
      `${select} calls.session = (SELECT ordinal FROM sessions WHERE id = ?) AND call_id = ? ORDER BY asks.ordinal`,
    ),
    requests: statement<RequestRow & { ordinal: number }>(`${request} settled IS NULL AND ${page}`),
    requestsInTree: statement<RequestRow & { ordinal: number }>(
      `${request} root = :root AND settled IS NULL AND ${page}`,
    ),
    open: statement<AskRow>(`${select} settled IS NULL AND ${page}`),
    openInTree: statement<AskRow>(`${select} asks.root = :root AND settled IS NULL AND ${page}`),
    due: statement<AskRow>(
      // A condition with OR reads every open ask.
      `${select} asks.ordinal IN (
         SELECT ordinal FROM asks WHERE settled IS NULL AND expires <= :now
         UNION ALL SELECT ordinal FROM asks WHERE settled IS NULL AND escalates <= :now
       ) ORDER BY expires, asks.ordinal LIMIT :limit OFFSET :offset`,
    ),
  };
}
