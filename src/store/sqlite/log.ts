import type { DatabaseSync } from "node:sqlite";
import { create, fromBinary, toBinary } from "@bufbuild/protobuf";
import { BinaryReader } from "@bufbuild/protobuf/wire";
import { type SessionEvent, SessionEventSchema } from "../../../gen/opencode/tool/v1/event_pb.ts";
import type { ToolPart } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import type { LogPage } from "../../call/ports.ts";
import { DamagedRecord, sealed, unsealed } from "../parts.ts";
import { createRecentEvents } from "../recent-events.ts";
import { eventTooLarge } from "../refusals.ts";
import type { Step } from "./commit.ts";
import { statementsOf } from "./database.ts";
import type { SessionHead, SqliteSessions } from "./sessions.ts";

/** Limits of one session's log. */
export interface LogLimits {
  events: number;
  bytes: number;
}

/** The logs of the sessions. */
export type SqliteLog = ReturnType<typeof createSqliteLog>;

/** Assigns sequence numbers per session and stores the events. */
export function createSqliteLog({
  db,
  sessions,
  limits,
}: {
  db: DatabaseSync;
  sessions: SqliteSessions;
  limits: LogLimits;
}) {
  const sql = prepare(db);
  const recent = createRecentEvents({ maxEvents: 256, maxBytes: 512 * 1024, maxTotalBytes: 4 * 1024 * 1024 });

  /** Appends an event under the session's next sequence number and returns its binary form. */
  function append(step: Step, sessionId: string, event: SessionEvent["event"]): Uint8Array {
    const head = sessions.change(step, sessionId);
    const seq = head.lastSeq + 1;
    const entry = create(SessionEventSchema, { seq: BigInt(seq), time: step.now, sessionId, event });
    const bytes = toBinary(SessionEventSchema, entry);
    if (bytes.byteLength > maxEventBytes) throw eventTooLarge(sessionId, bytes.byteLength, maxEventBytes);
    sql.insert.run(head.ordinal, seq, head.totalBytes + bytes.byteLength, ...sealed(bytes));
    head.lastSeq = seq;
    head.totalBytes += bytes.byteLength;
    if (!head.logged || step.now - head.active > activityGrainMs) {
      head.logged = true;
      head.active = step.now;
      sql.touch.run(step.now, head.ordinal);
    }
    if (isOver(head)) shorten(head);
    step.onCommit(() => recent.add(entry, bytes));
    step.notify(sessionId, seq);
    return bytes;
  }

  const isOver = (head: SessionHead) =>
    head.lastSeq - head.trimmed > limits.events || head.totalBytes - head.trimmedBytes > limits.bytes;

  /** Trims more than one event needs, so that not every append trims; never removes the last event. */
  function shorten(head: SessionHead): void {
    const retainedEvents = Math.floor(limits.events * retainedShare);
    const retainedBytes = Math.floor(limits.bytes * retainedShare);
    const first = sql.firstBeyond.get(head.ordinal, head.trimmed, head.totalBytes - retainedBytes)?.seq ?? head.lastSeq;
    trim(head, Math.min(Math.max(first - 1, head.lastSeq - retainedEvents), head.lastSeq - 1));
  }

  /** Removes the events up to a sequence number. The head must be registered for change. */
  function trim(head: SessionHead, upTo: number): void {
    const total = sql.totalAt.get(head.ordinal, upTo)?.total;
    if (total === undefined) return;
    sql.remove.run(head.ordinal, upTo);
    sql.setTrimmed.run(upTo, total, head.ordinal);
    head.trimmed = upTo;
    head.trimmedBytes = total;
  }

  function stored(head: SessionHead, afterSeq: number, maxBytes: number): SessionEvent[] {
    const events: SessionEvent[] = [];
    let bytes = 0;
    let next = afterSeq + 1;
    for (const { seq, event, crc } of sql.after.iterate(head.ordinal, afterSeq)) {
      bytes += event.byteLength;
      if (events.length > 0 && bytes > maxBytes) return events;
      const decoded = fromBinary(SessionEventSchema, unsealed(event, crc, `event ${seq} of session ${head.id}`));
      if (seq !== next || Number(decoded.seq) !== next) throw eventGone(head, next);
      events.push(decoded);
      next += 1;
    }
    if (next <= head.lastSeq) throw eventGone(head, next);
    return events;
  }

  return {
    append,
    trim,

    /** Returns the time of the last event of a log that has one. */
    timeOfLast: (head: SessionHead) => stored(head, head.lastSeq - 1, 0)[0]?.time ?? head.active,

    /** Returns the sequence number of the session's next event. */
    nextSeq: (sessionId: string) => sessions.need(sessionId).lastSeq + 1,

    /** Appends an event to the session's log and to that of each ancestor. */
    appendUpwards(step: Step, sessionId: string, event: SessionEvent["event"]): void {
      let head = sessions.find(sessionId);
      while (head !== undefined) {
        append(step, head.id, event);
        head = sessions.find(head.parent);
      }
    },

    read(sessionId: string, afterSeq: number, maxBytes: number): LogPage {
      const head = sessions.find(sessionId);
      if (head === undefined) return { events: [], firstSeq: 1, lastSeq: 0 };
      const bounds = { firstSeq: head.trimmed + 1, lastSeq: head.lastSeq };
      if (afterSeq < head.trimmed || afterSeq >= head.lastSeq) return { ...bounds, events: [] };
      const events = recent.after(sessionId, afterSeq, maxBytes) ?? stored(head, afterSeq, maxBytes);
      return { ...bounds, events };
    },

    /** Returns the binary form of a cached event, or of the part in one. */
    bytesOf(message: SessionEvent | ToolPart): Uint8Array | undefined {
      if (message.$typeName === "opencode.tool.v1.SessionEvent") {
        const found = recent.at(message.sessionId, message.seq);
        return found?.event === message ? found.bytes : undefined;
      }
      const found = recent.at(message.sessionId, message.revision);
      return found?.event.event.value === message ? partIn(found.bytes) : undefined;
    },

    /** Drops a removed session from the cache. */
    forget: recent.forget,
  };
}

/** Finds the encoded part in an encoded event. */
function partIn(event: Uint8Array): Uint8Array | undefined {
  const reader = new BinaryReader(event);
  while (reader.pos < reader.len) {
    const [field, wireType] = reader.tag();
    if (field === SessionEventSchema.field.part.number) return reader.bytes();
    reader.skip(wireType, field);
  }
  return undefined;
}

// Tolerated age of a session's stored activity time, so that not every event writes it.
const activityGrainMs = 3_600_000;

const maxEventBytes = 1024 * 1024;
const retainedShare = 63 / 64;

const eventGone = ({ id }: SessionHead, seq: number) => new DamagedRecord(`event ${seq} of session ${id} is gone`);

function prepare(db: DatabaseSync) {
  const statement = statementsOf(db);
  return {
    insert: statement("INSERT INTO log (session, seq, total, event, event_crc) VALUES (?, ?, ?, ?, ?)"),
    touch: statement("UPDATE sessions SET active = ?, logged = 1 WHERE ordinal = ?"),
    after: statement<{ seq: number; event: Uint8Array; crc: number | null }>(
      "SELECT seq, event, event_crc AS crc FROM log WHERE session = ? AND seq > ? ORDER BY seq",
    ),
    firstBeyond: statement<{ seq: number }>(
      "SELECT seq FROM log WHERE session = ? AND seq > ? AND total > ? ORDER BY seq LIMIT 1",
    ),
    totalAt: statement<{ total: number }>("SELECT total FROM log WHERE session = ? AND seq = ?"),
    remove: statement("DELETE FROM log WHERE session = ? AND seq <= ?"),
    setTrimmed: statement("UPDATE sessions SET trimmed = ?, trimmed_bytes = ? WHERE ordinal = ?"),
  };
}
