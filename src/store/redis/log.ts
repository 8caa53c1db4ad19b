import type { SessionEvent } from "../../../gen/opencode/tool/v1/event_pb.ts";
import type { AuditEntry } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import type { LogPage } from "../../call/ports.ts";
import { auditEntry, DamagedRecord } from "../parts.ts";
import { createRecentEvents } from "../recent-events.ts";
import { decodeEvent } from "./events.ts";
import type { Keys } from "./keys.ts";
import type { Link } from "./link.ts";
import { createListing } from "./listing.ts";
import { bytes, inPortions, number, replyList, text } from "./reply.ts";
import type { Trees } from "./trees.ts";

/** An event as a step appended it. */
export interface LoggedEvent {
  sessionId: string;
  seq: number;
  bytes: Uint8Array;
}

/** Reads of session logs. */
export type RedisLog = ReturnType<typeof createRedisLog>;

/**
 * Creates the reads of logs. Concurrent readers of the same page share one answer and its events. While a session has
 * subscribers, the events read or written here last are cached; news invalidate the end of the cache.
 */
export function createRedisLog({ link, keys, trees }: { link: Link; keys: Keys; trees: Trees }) {
  // By session, then by page. News end the sharing of a pending answer, since it may lack them.
  const reading = new Map<string, Map<string, Promise<LogPage>>>();
  // Known bounds of the logs with subscribers.
  const heads = new Map<string, { first?: number; last: number }>();
  let recent = createRecentEvents(recentLimits);
  // After a failover Redis may lack the last writes.
  link.onBreak(forgetEvents);

  function forgetEvents(): void {
    recent = createRecentEvents(recentLimits);
    for (const id of heads.keys()) heads.set(id, { last: 0 });
  }

  function cache({ sessionId, seq, bytes: encoded }: LoggedEvent, time: number): SessionEvent {
    const decoded = decodeEvent(encoded, sessionId, seq, time);
    const head = heads.get(sessionId);
    if (head === undefined) return decoded;
    head.last = Math.max(head.last, seq);
    recent.add(decoded, encoded);
    return decoded;
  }

  async function load(sessionId: string, after: number, maxBytes: number): Promise<LogPage> {
    const before = heads.get(sessionId)?.last;
    const page = await trees.find(sessionId, async (root) => {
      const { session, log } = keys.tree(root);
      const names = [session(sessionId), log(sessionId)];
      const [first, last, entries] = replyList(await link.read("read_log", names, after, maxBytes));
      if (first === undefined) return undefined;
      const [firstSeq, lastSeq] = [number(first), number(last)];
      const head = heads.get(sessionId);
      // News without an event name the next sequence number, but not while this was read.
      const known = head?.last === before ? lastSeq : Math.max(head?.last ?? 0, lastSeq);
      if (head) Object.assign(head, { first: firstSeq, last: known });
      let next = after + 1;
      const events = inPortions(replyList(entries), 3).map(([seq, time, event]) => {
        if (number(seq) !== next) throw eventGone(sessionId, next);
        next += 1;
        return cache({ sessionId, seq: number(seq), bytes: bytes(event) ?? Buffer.alloc(0) }, number(time));
      });
      if (events.length === 0 && after + 1 >= firstSeq && after < lastSeq) throw eventGone(sessionId, next);
      return { events, firstSeq, lastSeq };
    });
    return page ?? { events: [], firstSeq: 1, lastSeq: 0 };
  }

  return {
    /** Begins to cache a session, when it gets its first subscriber. */
    listen: (sessionId: string) => void heads.set(sessionId, { last: 0 }),
    /** Ends the caching of a session, after its last subscriber. */
    forget(sessionId: string): void {
      heads.delete(sessionId);
      recent.forget(sessionId);
    },

    /** Caches events that a step appended at a time, of sessions with subscribers. */
    remember(time: number, events: readonly LoggedEvent[]): void {
      for (const event of events) if (heads.has(event.sessionId)) cache(event, time);
    },

    /** Empties the cache. */
    forgetEvents,

    async read(sessionId: string, after: number, maxBytes: number): Promise<LogPage> {
      const head = heads.get(sessionId);
      const events = head && recent.after(sessionId, after, maxBytes);
      if (head && events && events.length > 0) return { events, firstSeq: head.first ?? after + 1, lastSeq: head.last };
      const ofSession = reading.get(sessionId) ?? new Map<string, Promise<LogPage>>();
      reading.set(sessionId, ofSession);
      const page = `${after} ${maxBytes}`;
      const shared = ofSession.get(page);
      if (shared !== undefined) return shared;
      const answer = load(sessionId, after, maxBytes).finally(() => {
        if (ofSession.get(page) === answer) ofSession.delete(page);
        if (ofSession.size === 0 && reading.get(sessionId) === ofSession) reading.delete(sessionId);
      });
      ofSession.set(page, answer);
      return answer;
    },

    /** Invalidates shared answers after news of a session, from this sequence number on. */
    refresh(sessionId: string, seq: number): void {
      reading.delete(sessionId);
      const head = heads.get(sessionId);
      if (head) head.last = Math.max(head.last, seq);
    },
  };
}

const eventGone = (sessionId: string, seq: number) => new DamagedRecord(`event ${seq} of session ${sessionId} is gone`);

// A decoded event takes about five times its bytes. One busy session may use most of the cache, for its slow readers.
const recentLimits = { maxEvents: 4_096, maxBytes: 1024 * 1024, maxTotalBytes: 2 * 1024 * 1024 };

/** The audit of a store. */
export type RedisAudit = ReturnType<typeof createRedisAudit>;

/** Reads the chain of decisions of a tree, which the scripts write, and lists removed trees whose chain is retained. */
export function createRedisAudit({ link, keys }: { link: Link; keys: Keys }) {
  const removed = createListing({ link, keys, name: "audits" });

  return {
    /** Lists a removed tree, whose audit is retained. */
    listRemoved: (root: string) => removed.enter(root),

    /** Lists the roots of removed trees; see the port. */
    async gone({ before, limit }: { before?: string; limit: number }): Promise<string[]> {
      const place = before === undefined ? undefined : await removed.placeOf(before);
      const roots: string[] = [];
      for await (const root of removed.newest(place, limit)) {
        roots.push(root);
        if (roots.length === limit) break;
      }
      return roots;
    },

    /** Trims the audits of removed trees, and removes those without one from the list. */
    async sweep(trim: (root: string) => Promise<void>, forget: (root: string) => Promise<void>): Promise<void> {
      for await (const roots of removed.all()) {
        for (const root of roots) {
          const { audit } = keys.tree(root);
          await trim(root);
          if (number(await link.command("xlen", audit)) > 0) continue;
          await removed.remove(root);
          const [result] = replyList(await link.run("drop_audit", { audit }));
          // A step has appended since.
          if (text(result) === "in use") await removed.enter(root);
          else await forget(root);
        }
      }
    },

    async list({ root, afterSeq, limit }: { root: string; afterSeq: number; limit: number }): Promise<AuditEntry[]> {
      const from = `${afterSeq + 1}-0`;
      const found = replyList(await link.command("xrange", keys.tree(root).audit, from, "+", "COUNT", limit));
      return found.map((entry) => {
        const [id, fields] = replyList(entry);
        const [, time, , previous, , hash, , content] = replyList(fields);
        return auditEntry({
          seq: Number.parseInt(text(id), 10),
          time: number(time),
          rootSessionId: root,
          previous: text(previous),
          hash: text(hash),
          content: bytes(content) ?? new Uint8Array(),
        });
      });
    },
  };
}
