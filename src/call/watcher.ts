import type { SessionEvent } from "../../gen/opencode/tool/v1/event_pb.ts";
import type { PermissionRequest } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { AskStore } from "../approval/ports.ts";
import type { Principal } from "../core/principal.ts";
import { createBell, snapshotEvent } from "./log.ts";
import type { EventLog } from "./ports.ts";
import { readsAll, type Sessions } from "./sessions.ts";

/** An event of an ask, the mark after the snapshot, or with neither a heartbeat. */
export interface WatchedAsk {
  event?: SessionEvent;
  snapshotEnd?: boolean;
}

/** Predicate over permission requests; `root` limits the sessions that have to be read. */
export type SeesAsk = ((request: Pick<PermissionRequest, "sessionId" | "ancestry">) => Promise<boolean>) & {
  root: string | undefined;
};

/** Watches permission requests across sessions. */
export interface Watcher {
  /** Returns which requests a principal may see, limited to a session and its descendants if one is named. */
  visibility(principal: Principal, sessionId: string): Promise<SeesAsk>;
  /** Yields the open requests, then a mark, then every request, vote and settlement, until the signal is aborted. */
  watch(
    principal: Principal,
    options: { sessionId: string; heartbeatMs?: number | undefined },
    signal: AbortSignal,
  ): AsyncGenerator<WatchedAsk, never>;
}

interface WatcherParts {
  store: EventLog;
  asks: Pick<AskStore, "openAsks">;
  sessions: Pick<Sessions, "look" | "find">;
}

const defaultHeartbeatMs = 15_000;
const pageBytes = 256 * 1024;
const snapshotPage = 500;

/** Creates the watcher of a replica. */
export function createWatcher(parts: WatcherParts): Watcher {
  return {
    visibility: (principal, sessionId) => askVisibility(parts, principal, sessionId),
    async *watch(principal, { sessionId, heartbeatMs = defaultHeartbeatMs }, signal) {
      return yield* watchAsks(parts, await askVisibility(parts, principal, sessionId), heartbeatMs, signal);
    },
  };
}

async function askVisibility({ sessions }: WatcherParts, principal: Principal, sessionId: string): Promise<SeesAsk> {
  const opened = sessionId === "" ? undefined : await sessions.look(principal, sessionId, "read");
  const all = readsAll(principal);
  const sees = async (request: Pick<PermissionRequest, "sessionId" | "ancestry">): Promise<boolean> => {
    if (sessionId !== "" && !request.ancestry.includes(sessionId)) return false;
    return all || (await sessions.find(request.sessionId))?.session.owner === principal.id;
  };
  return Object.assign(sees, { root: opened?.session.rootSessionId });
}

/** State of one watch. */
interface SessionNews {
  /** Sessions with unread news. */
  readonly unread: Set<string>;
  /** Sequence number up to which a session with news was read. */
  readonly readTo: Map<string, number>;
}

async function* watchAsks(
  { store, asks }: WatcherParts,
  sees: SeesAsk,
  heartbeatMs: number,
  signal: AbortSignal,
): AsyncGenerator<WatchedAsk, never> {
  const bell = createBell();
  const news: SessionNews = { unread: new Set(), readTo: new Map() };
  const off = store.onNews(undefined, (id, seq) => {
    if (!news.readTo.has(id)) news.readTo.set(id, seq - 1);
    news.unread.add(id);
    bell.ring();
  });
  /** Ids of the requests that were yielded and are not settled. */
  const open = new Set<string>();
  try {
    for await (const request of openRequests(asks, sees)) {
      open.add(request.id);
      const about = { case: "permissionAsked", value: request } as const;
      yield { event: snapshotEvent(request.sessionId, 0, request.created, about) };
    }
    yield { snapshotEnd: true };
    for (;;) {
      for (const id of [...news.unread]) {
        news.unread.delete(id);
        for await (const event of askEvents(store, id, news)) {
          if (event.event.case === "permissionAsked") {
            if (open.has(event.event.value.id) || !(await sees(event.event.value))) continue;
            open.add(event.event.value.id);
            yield { event };
          }
          // A settlement of a request that was not yielded means nothing to this watcher.
          if (isChange(event.event) && open.has(event.event.value.permissionId)) yield { event };
          if (event.event.case === "permissionSettled" && open.delete(event.event.value.permissionId)) yield { event };
        }
      }
      if (news.unread.size > 0) continue;
      if ((await bell.wait(heartbeatMs, signal)) === "quiet") yield {};
    }
  } finally {
    off();
  }
}

/** Yields the open requests that are visible, oldest first. */
async function* openRequests(asks: Pick<AskStore, "openAsks">, sees: SeesAsk): AsyncGenerator<PermissionRequest, void> {
  for (let after: string | undefined; ; ) {
    const page = await asks.openAsks({
      ...(sees.root && { root: sees.root }),
      ...(after && { after }),
      limit: snapshotPage,
    });
    for (const { request } of page) if (await sees(request)) yield request;
    after = page.at(-1)?.request.id;
    if (page.length < snapshotPage) return;
  }
}

type AskChange = Extract<SessionEvent["event"], { case: "permissionVoted" | "permissionEscalated" }>;
type AskEvent = AskChange | Extract<SessionEvent["event"], { case: "permissionAsked" | "permissionSettled" }>;

function isChange(event: SessionEvent["event"]): event is AskChange {
  return event.case === "permissionVoted" || event.case === "permissionEscalated";
}

function isAboutAsk(event: SessionEvent["event"]): event is AskEvent {
  return event.case === "permissionAsked" || isChange(event) || event.case === "permissionSettled";
}

/** Yields the unread events of a session's log about its own requests. */
async function* askEvents(store: EventLog, id: string, { unread, readTo }: SessionNews): AsyncGenerator<SessionEvent> {
  for (;;) {
    const page = await store.readLog(id, readTo.get(id) ?? 0, pageBytes);
    for (const event of page.events) {
      readTo.set(id, Number(event.seq));
      const about = event.event;
      if (isAboutAsk(about) && about.value.sessionId === id) yield event;
    }
    if (page.events.length > 0) continue;
    // The next news name the number to go on from, unless they have arrived already.
    if (!unread.has(id)) readTo.delete(id);
    return;
  }
}
