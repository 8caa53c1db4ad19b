import type { LogPage } from "../../call/ports.ts";
import { decodeEvent } from "./events.ts";
import type { Keys } from "./keys.ts";
import type { Link } from "./link.ts";
import { bytes, list, number, type Reply, text } from "./reply.ts";
import type { Trees } from "./trees.ts";

/** The logs of the sessions, to be read. */
export type Log = ReturnType<typeof createLog>;

/** Reads logs. Readers that want the same at the same time share one answer and its events. */
export function createLog({ link, keys, trees }: { link: Link; keys: Keys; trees: Trees }) {
  // By session, then by what is asked. An answer under way is not shared any more once there are news: it may lack them.
  const reading = new Map<string, Map<string, Promise<LogPage>>>();

  async function load(sessionId: string, after: number, maxBytes: number): Promise<LogPage> {
    const page = await trees.find(sessionId, async (root) => {
      const { session, log } = keys.tree(root);
      const names = { session: session(sessionId), log: log(sessionId) };
      const [firstSeq, lastSeq, entries] = list(await link.run("read_log", names, { after, maxBytes }));
      if (firstSeq === undefined) return undefined;
      return {
        events: decodeEntries(sessionId, list(entries)),
        firstSeq: number(firstSeq),
        lastSeq: number(lastSeq),
      };
    });
    return page ?? { events: [], firstSeq: 1, lastSeq: 0 };
  }

  return {
    read(sessionId: string, after: number, maxBytes: number): Promise<LogPage> {
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

function decodeEntries(sessionId: string, entries: Reply[]) {
  return Array.from({ length: entries.length / 3 }, (_, index) => {
    const [seq, time, event] = entries.slice(index * 3, index * 3 + 3);
    return decodeEvent(bytes(event) ?? Buffer.alloc(0), sessionId, number(seq), Number(text(time)));
  });
}
