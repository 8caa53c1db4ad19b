import type { SessionEvent } from "../../../gen/opencode/tool/v1/event_pb.ts";
import type { LogPage } from "../../call/ports.ts";
import { createRecentEvents } from "../recent-events.ts";
import { decodeEvent } from "./events.ts";
import type { Keys } from "./keys.ts";
import type { Link } from "./link.ts";
import { bytes, inThrees, number, type Reply, replyList, text } from "./reply.ts";
import type { Trees } from "./trees.ts";

/** The logs of the sessions, to be read. */
export type RedisLog = ReturnType<typeof createRedisLog>;

/**
 * Reads logs. Readers that want the same at the same time share one answer and its events. As long as somebody listens to a
 * session, what was read or written here last is in memory: the doorbell says when that is not all any more.
 */
export function createRedisLog({ link, keys, trees }: { link: Link; keys: Keys; trees: Trees }) {
  // By session, then by what is asked. An answer under way is not shared any more once there are news: it may lack them.
  const reading = new Map<string, Map<string, Promise<LogPage>>>();
  // What is known of the logs that somebody listens to.
  const heard = new Map<string, { first?: number; last: number }>();
  let recent = createRecentEvents(kept);
  link.onBreak(() => {
    // A Redis that took over from another one may lack what was written last.
    recent = createRecentEvents(kept);
    for (const id of heard.keys()) heard.set(id, { last: 0 });
  });

  function keep(sessionId: string, seq?: Reply, time?: Reply, event?: Reply): SessionEvent {
    const encoded = bytes(event) ?? Buffer.alloc(0);
    const decoded = decodeEvent(encoded, sessionId, number(seq), number(time));
    const head = heard.get(sessionId);
    if (head === undefined) return decoded;
    head.last = Math.max(head.last, number(seq));
    recent.add(decoded, encoded);
    return decoded;
  }

  async function load(sessionId: string, after: number, maxBytes: number): Promise<LogPage> {
    const before = heard.get(sessionId)?.last;
    const page = await trees.find(sessionId, async (root) => {
      const { session, log } = keys.tree(root);
      const names = [session(sessionId), log(sessionId)];
      const [first, last, entries] = replyList(await link.read("read_log", names, after, maxBytes));
      if (first === undefined) return undefined;
      const [firstSeq, lastSeq] = [number(first), number(last)];
      const head = heard.get(sessionId);
      // A ring may have named the number that an event would have, but not while this was read.
      const known = head?.last === before ? lastSeq : Math.max(head?.last ?? 0, lastSeq);
      if (head) Object.assign(head, { first: firstSeq, last: known });
      const events = inThrees(replyList(entries)).map(([seq, time, event]) => keep(sessionId, seq, time, event));
      return { events, firstSeq, lastSeq };
    });
    return page ?? { events: [], firstSeq: 1, lastSeq: 0 };
  }

  return {
    /** Somebody begins to listen to a session, or nobody does any more. */
    listen: (sessionId: string) => void heard.set(sessionId, { last: 0 }),
    forget(sessionId: string): void {
      heard.delete(sessionId);
      recent.forget(sessionId);
    },

    /** Keeps what steps of ours added to logs: session, number and event, by three. */
    remember(time: Reply | undefined, events: readonly Reply[]): void {
      for (const [sessionId, seq, event] of inThrees(events)) keep(text(sessionId), seq, time, event);
    },

    async read(sessionId: string, after: number, maxBytes: number): Promise<LogPage> {
      const head = heard.get(sessionId);
      const events = head && recent.after(sessionId, after, maxBytes);
      if (head && events && events.length > 0) return { events, firstSeq: head.first ?? after + 1, lastSeq: head.last };
      const ofSession = reading.get(sessionId) ?? new Map<string, Promise<LogPage>>();
      reading.set(sessionId, ofSession);
      const question = `${after} ${maxBytes}`;
      const shared = ofSession.get(question);
      if (shared !== undefined) return shared;
      const answer = load(sessionId, after, maxBytes).finally(() => {
        if (ofSession.get(question) === answer) ofSession.delete(question);
        if (ofSession.size === 0 && reading.get(sessionId) === ofSession) reading.delete(sessionId);
      });
      ofSession.set(question, answer);
      return answer;
    },

    /** There are news in a session, from this number on: who asks from now on gets a new answer. */
    refresh(sessionId: string, seq: number): void {
      reading.delete(sessionId);
      const head = heard.get(sessionId);
      if (head) head.last = Math.max(head.last, seq);
    },
  };
}

// In memory an event takes about five times its bytes. A session that many watch may have most of the room: those who lag share it.
const kept = { eventsKept: 4_096, bytesKept: 1024 * 1024, totalBytesKept: 2 * 1024 * 1024 };
