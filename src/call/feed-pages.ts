import type { SessionEvent } from "../../gen/opencode/tool/v1/event_pb.ts";
import type { Session } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import { callOf } from "./log.ts";
import type { EventLog, StoreMembership } from "./ports.ts";

/** An event in the form in which it is sent; without a value nothing is sent of it. */
export interface FeedEvent<T> {
  readonly seq: number;
  readonly time: number;
  readonly value: T | undefined;
}

/** A page of a session's log in the form in which it is sent. */
export interface FeedPage<T> {
  readonly events: readonly FeedEvent<T>[];
  readonly firstSeq: number;
  readonly lastSeq: number;
  /** Store that had the log; another one may have lost events. */
  readonly storeId: string;
}

/** Pages of logs, each read and converted once for all readers that need it at the same time. */
export interface FeedPages<T> {
  after(session: Session, seq: number): Promise<FeedPage<T>>;
}

/** Time for which a page is shared after it was read, in ms. News of its session end that earlier. */
const sharedMs = 100;
const pageBytes = 256 * 1024;

/** Creates the pages of a replica. */
export function createFeedPages<T>(
  store: EventLog & Pick<StoreMembership, "storeIdOf">,
  convert: (event: SessionEvent, session: Session) => Promise<T | undefined>,
): FeedPages<T> {
  const shared = new Map<string, Map<number, Promise<FeedPage<T>>>>();
  // All listeners of a step are called before any reader that waits for it goes on.
  store.onNews(undefined, (id) => shared.delete(id));

  async function read(session: Session, seq: number): Promise<FeedPage<T>> {
    const { events, firstSeq, lastSeq } = await store.readLog(session.id, seq, pageBytes);
    const converted: FeedEvent<T>[] = [];
    for (const [index, event] of events.entries()) {
      const value = isReplaced(events, index) ? undefined : await convert(event, session);
      converted.push({ seq: Number(event.seq), time: event.time, value });
    }
    return { events: converted, firstSeq, lastSeq, storeId: store.storeIdOf(session.rootSessionId) };
  }

  return {
    after(session, seq) {
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
