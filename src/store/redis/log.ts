import type { SessionEvent } from "../../../gen/opencode/tool/v1/event_pb.ts";
import type { LogPage } from "../../call/ports.ts";
import { createRecentEvents } from "../recent-events.ts";
import { decodeEvent } from "./events.ts";
import type { Keys } from "./keys.ts";
import type { Link } from "./link.ts";
import { bytes, inThrees, list, number, type Reply, text } from "./reply.ts";
import type { Trees } from "./trees.ts";

/** The logs of the sessions, to be read. */
export type Log = ReturnType<typeof createLog>;

/**
 * Reads logs. Readers that want the same at the same time share one answer and its events, and what was read or written
 * here last is in memory.
 */
export function createLog({ link, keys, trees }: { link: Link; keys: Keys; trees: Trees }) {
  // By session, then by what is asked. An answer under way is not shared any more once there are news: it may lack them.
  const reading = new Map<string, Map<string, Promise<LogPage>>>();

  // A Redis that took over from another one may lack what was written last.
  let recent = createRecentEvents(kept);
  link.onBreak(() => {
    recent = createRecentEvents(kept);
  });

  function keep(sessionId: string, seq?: Reply, time?: Reply, event?: Reply): SessionEvent {
    const encoded = bytes(event) ?? Buffer.alloc(0);
    const decoded = decodeEvent(encoded, sessionId, number(seq), number(time));
    recent.add(decoded, encoded);
    return decoded;
  }

  async function load(sessionId: string, after: number, maxBytes: number): Promise<LogPage> {
    const page = await trees.find(sessionId, async (root) => {
      const { session, log } = keys.tree(root);
      const names = [session(sessionId), log(sessionId)];
      const [firstSeq, lastSeq, entries] = list(await link.read("read_log", names, after, maxBytes));
      if (firstSeq === undefined) return undefined;
      return {
        events: inThrees(list(entries)).map(([seq, time, event]) => keep(sessionId, seq, time, event)),
        firstSeq: number(firstSeq),
        lastSeq: number(lastSeq),
      };
    });
    return page ?? { events: [], firstSeq: 1, lastSeq: 0 };
  }

  return {
    /** Keeps what steps of ours added to logs: session, number and event, by three. */
    remember(time: Reply | undefined, events: readonly Reply[]): void {
      for (const [sessionId, seq, event] of inThrees(events)) keep(text(sessionId), seq, time, event);
    },

    async read(sessionId: string, after: number, maxBytes: number): Promise<LogPage> {
      const known = recent.after(sessionId, after, maxBytes);
      const last = known?.at(-1);
      if (known && last) return { events: known, firstSeq: after + 1, lastSeq: Number(last.seq) };
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

    /** There are news in a session: who asks from now on gets a new answer. */
    refresh: (sessionId: string) => void reading.delete(sessionId),
  };
}

// In memory an event takes about five times its bytes. A session that many watch may have most of the room: those who lag share it.
const kept = { eventsKept: 4_096, bytesKept: 2 * 1024 * 1024, totalBytesKept: 4 * 1024 * 1024 };
