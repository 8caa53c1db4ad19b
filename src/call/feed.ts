import { setTimeout as delay } from "node:timers/promises";
import type { SessionEvent } from "../../gen/opencode/tool/v1/event_pb.ts";
import type { Session } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import type { Principal } from "../core/principal.ts";
import { callOf, createBell, type Logs, readPage, readToEnd, type StoredPage } from "./log.ts";
import type { Sessions } from "./sessions.ts";

/** Feed of the events of all sessions. */
export interface Feed<T> {
  store: Logs;
  sessions: Pick<Sessions, "find" | "list">;
  /** Reads a page of a session's log; it is read and converted once for all readers that need it at the same time. */
  pageAfter(session: Session, seq: number): Promise<FeedPage<T>>;
  /** Waits for what follows news at once. Readers that wait then go on together: writing to all clients in one go takes less. */
  gather(): Promise<void>;
  /** Listeners of the readers for what no log has; `announceInFeed` calls them. */
  readonly listeners: Set<(session: Session, value: T) => void>;
}

/** Reader of a feed. */
export interface FeedReader {
  /** Selects sessions, of those that the reader may read. */
  sees: (session: Session) => boolean;
  /** Position, which moves on with each event. */
  position: FeedPosition;
  /** Principal of a reader that goes on from a position, which may be long ago. */
  resumesAs?: Principal | undefined;
}

/**
 * An item of a feed: an event in the form in which it is sent, a session that was created, a gap (events of a session are not
 * stored any more, or the store has lost some), the begin, after which no event is missed, a pause, in which nothing is left to
 * yield, or a beat at a fixed interval.
 */
export type FeedItem<T> =
  | { kind: "event"; session: Session; value: T }
  | { kind: "created"; session: Session }
  | { kind: "gap"; session: Session }
  | { kind: "begin" }
  | { kind: "pause" }
  | { kind: "beat" };

/** Sends all readers a value that is in no log, so a reader that is away misses it. */
export function announceInFeed<T>({ listeners }: Feed<T>, session: Session, value: T): void {
  for (const listener of listeners) listener(session, value);
}

/**
 * Yields the events of all sessions that a reader may read and wants, in the order of each log, after its position and until the
 * signal is aborted; then it throws the reason. Readers pull, so a slow one costs one page of memory and delays no other.
 */
export async function* followFeed<T>(
  feed: Feed<T>,
  reader: FeedReader,
  { beatMs, signal }: { beatMs: number; signal: AbortSignal },
): AsyncGenerator<FeedItem<T>, never> {
  const { position } = reader;
  const bell = createBell();
  /** Sessions with unread events, and the number after which these begin. */
  const unread = new Map<string, number>();
  const announced: FeedItem<T>[] = [];
  const following: Following = { began: position.floor, storeIds: new Map() };
  const off = feed.store.onNews(undefined, (id, seq) => {
    unread.set(id, Math.min(seq - 1, unread.get(id) ?? seq));
    bell.ring();
  });
  const listener = (session: Session, value: T) => {
    if (!reader.sees(session)) return;
    announced.push({ kind: "event", session, value });
    if (announced.length > maxAnnounced) announced.shift();
    bell.ring();
  };
  feed.listeners.add(listener);
  try {
    yield { kind: "begin" };
    if (reader.resumesAs) yield* missedSessions(feed, reader, reader.resumesAs, { unread, signal });
    for (let beatAt = performance.now() + beatMs; ; ) {
      signal.throwIfAborted();
      yield* announced.splice(0);
      for (const [id, after] of [...unread]) {
        unread.delete(id);
        const session = (await feed.sessions.find(id))?.session;
        if (session && reader.sees(session)) yield* newEvents(feed, reader, following, session, after);
      }
      if (unread.size > 0) continue;
      // News of sessions that the reader does not see must not delay it.
      yield { kind: "pause" };
      if (unread.size > 0 || announced.length > 0) continue;
      const left = beatAt - performance.now();
      if (left > 0 && (await bell.wait(left, signal)) === "news") {
        await feed.gather();
        continue;
      }
      beatAt = performance.now() + beatMs;
      yield { kind: "beat" };
    }
  } finally {
    off();
    feed.listeners.delete(listener);
  }
}

/** Announcements that wait for a reader that is slow; it misses the older ones, as one that is away does. */
const maxAnnounced = 100;

/** State of one reading, beside its position. */
interface Following {
  /** Floor at the begin. */
  readonly began: number;
  /** Store of the log of each session that was read. */
  readonly storeIds: Map<string, string>;
}

/** Yields a session's events after the position, or after a number if the position does not name the session. */
async function* newEvents<T>(
  { pageAfter }: Feed<T>,
  { position }: FeedReader,
  { began, storeIds }: Following,
  session: Session,
  after: number,
): AsyncGenerator<FeedItem<T>, void> {
  const { id } = session;
  const from = { seq: position.read.get(id)?.seq ?? after, storeId: storeIds.get(id) };
  const read = (afterSeq: number) => pageAfter(session, afterSeq);
  for await (const { events, seq: readTo, gap, storeId } of readToEnd(id, from, read)) {
    storeIds.set(id, storeId);
    if (gap) {
      yield { kind: "gap", session };
      // The reader starts again from what is stored, so nothing before counts as missed.
      advancePosition(position, id, readTo, position.floor + 1);
      continue;
    }
    for (const { seq, time, value } of events) {
      // News may name an earlier number than the first new one.
      if (!position.read.has(id) && time <= began) continue;
      advancePosition(position, id, seq, time);
      if (value !== undefined) yield { kind: "event", session, value };
    }
  }
}

/** Finds what a reader missed while it was away: yields the sessions that have no event yet, and adds the others to `unread`. */
async function* missedSessions<T>(
  { store, sessions }: Feed<T>,
  { position: { floor, read }, sees }: FeedReader,
  principal: Principal,
  { unread, signal }: { unread: Map<string, number>; signal: AbortSignal },
): AsyncGenerator<FeedItem<T>, void> {
  for (const [id, { seq }] of read) unread.set(id, seq);
  for (let before: string | undefined; ; ) {
    const page = await sessions.list(principal, { limit: listedSessions, ...(before && { before }) });
    for (const session of page) {
      signal.throwIfAborted();
      if (read.has(session.id) || !sees(session)) continue;
      const lastSeq = Number(session.lastSeq);
      if (lastSeq === 0 && session.created > floor) yield { kind: "created", session };
      const after = lastSeq === 0 ? 0 : await lastSeqUpTo(store, session.id, floor, lastSeq);
      if (after < lastSeq) unread.set(session.id, Math.min(after, unread.get(session.id) ?? after));
    }
    before = page.at(-1)?.id;
    if (page.length < listedSessions) return;
  }
}

const listedSessions = 500;

/** Returns the number of a session's last event up to a time; 0 if all stored ones are later. */
async function lastSeqUpTo(store: Logs, id: string, time: number, lastSeq: number): Promise<number> {
  const eventAfter = async (seq: number) => (await store.readLog(id, seq, 1)).events[0];
  const { events, firstSeq } = await store.readLog(id, lastSeq - 1, 1);
  if (events[0] === undefined || events[0].time <= time) return lastSeq;
  let [earlier, later] = [0, lastSeq];
  while (later - earlier > 1) {
    const middle = (earlier + later) >> 1;
    const event = await eventAfter(middle - 1);
    // Numbers before the first stored one have no event.
    if (event === undefined || event.time <= time) earlier = middle;
    else later = middle;
  }
  return later === firstSeq ? 0 : later - 1;
}

/** Time in which events of other sessions may overtake an event on its way to a reader, in ms. */
const overtakenMs = 30_000;
/** Maximum number of sessions that the text of a position names. */
const maxNamed = 32;

/**
 * Position of a reader in the logs of many sessions. `read` has the last event that was read of each session with news in the 30 s
 * before the newest one; of all other sessions every event up to `floor` was read. So its size does not grow with the number of
 * sessions, and it can leave the process: a reader goes on from its text at another replica, or after a restart.
 */
export interface FeedPosition {
  /** Time of the store, in ms since the epoch. */
  floor: number;
  /** Session → last event that was read; the session with the newest event is the last one. */
  readonly read: Map<string, { readonly seq: number; readonly time: number }>;
}

/** Creates the position after every event up to a time of the store. */
export function positionAt(floor: number): FeedPosition {
  return { floor: Math.floor(floor), read: new Map() };
}

/** Moves a position on to an event that was read. */
export function advancePosition(position: FeedPosition, sessionId: string, seq: number, time: number): void {
  const { read } = position;
  read.delete(sessionId);
  read.set(sessionId, { seq, time });
  const floor = Math.floor(time) - overtakenMs;
  if (floor <= position.floor) return;
  position.floor = floor;
  for (const [id, last] of read) if (last.time <= floor) read.delete(id);
}

/** Writes a position. If more sessions had news than it may name, a reader that goes on from it reads some events twice. */
export function positionText({ floor, read }: FeedPosition, storeId: string): string {
  const named = [...read].slice(-maxNamed).map(([id, { seq }]) => `${id}.${seq}`);
  return [storeId, floor, ...named].join("~");
}

/** Reads the text of a position; undefined if it is not one, or one in another store. */
export function parsePosition(text: string, storeId: string): FeedPosition | undefined {
  const [store, floor = "", ...sessions] = text.split("~");
  if (store !== storeId || !/^\d{1,15}$/.test(floor) || sessions.length > maxNamed) return undefined;
  const position = positionAt(Number(floor));
  for (const named of sessions) {
    const [, id, seq] = /^(ses[A-Za-z0-9_-]{1,61})\.(\d{1,15})$/.exec(named) ?? [];
    if (id === undefined) return undefined;
    // Its time is not in the text; it is at most that of the newest event.
    position.read.set(id, { seq: Number(seq), time: position.floor + overtakenMs });
  }
  return position;
}

/** An event in the form in which it is sent; without a value nothing is sent of it. */
interface FeedEvent<T> {
  readonly seq: number;
  readonly time: number;
  readonly value: T | undefined;
}

/** A page of a session's log in the form in which it is sent. */
interface FeedPage<T> extends StoredPage {
  readonly events: readonly FeedEvent<T>[];
}

/** Time for which a page is shared after it was read, in ms. News of its session end that earlier. */
const sharedMs = 100;

/** Creates the feed of a replica; `convert` gives an event the form in which it is sent. Readers gather news for `gatherMs`. */
export function createFeed<T>(
  { store, sessions }: Pick<Feed<T>, "store" | "sessions">,
  convert: (event: SessionEvent, session: Session) => Promise<T | undefined>,
  gatherMs = 0,
): Feed<T> {
  let gathered: Promise<void> | undefined;
  const shared = new Map<string, Map<number, Promise<FeedPage<T>>>>();
  // All listeners of a step are called before any reader that waits for it goes on.
  store.onNews(undefined, (id) => shared.delete(id));

  async function read(session: Session, seq: number): Promise<FeedPage<T>> {
    const page = await readPage(store, { sessionId: session.id, root: session.rootSessionId }, seq);
    const events: FeedEvent<T>[] = [];
    for (const [index, event] of page.events.entries()) {
      const value = isReplaced(page.events, index) ? undefined : await convert(event, session);
      events.push({ seq: Number(event.seq), time: event.time, value });
    }
    return { ...page, events };
  }

  return {
    store,
    sessions,
    listeners: new Set(),
    async gather() {
      if (gatherMs === 0) return;
      gathered ??= delay(gatherMs).then(() => {
        gathered = undefined;
      });
      await gathered;
    },
    pageAfter(session, seq) {
      const pages = shared.get(session.id) ?? new Map<number, Promise<FeedPage<T>>>();
      shared.set(session.id, pages);
      const found = pages.get(seq);
      if (found) return found;
      const page = read(session, seq);
      pages.set(seq, page);
      const drop = () => {
        pages.delete(seq);
        if (pages.size === 0 && shared.get(session.id) === pages) shared.delete(session.id);
      };
      void page.catch(() => undefined).then(() => setTimeout(drop, sharedMs).unref());
      return page;
    },
  };
}

/** True for progress and output that a later event of the page replaces: a reader who is behind gets the newest only. */
function isReplaced(events: readonly SessionEvent[], index: number): boolean {
  const event = events[index];
  if (event === undefined || (event.event.case !== "progress" && event.event.case !== "output")) return false;
  const callId = callOf(event);
  return events
    .slice(index + 1)
    .some(
      (later) => callOf(later) === callId && (later.event.case === "part" || later.event.case === event.event.case),
    );
}
