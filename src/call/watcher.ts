import type { SessionEvent } from "../../gen/opencode/tool/v1/event_pb.ts";
import type { Session } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import type { PermissionRequest } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { AskStore } from "../approval/ports.ts";
import { eachOpenRequest } from "../approval/settlements.ts";
import type { Principal } from "../core/principal.ts";
import { createFeed, type FeedItem, followFeed, positionAt } from "./feed.ts";
import { defaultHeartbeatMs, type Logs, snapshotEvent } from "./log.ts";
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
export type Watcher = ReturnType<typeof createWatcher>;

interface WatcherParts {
  store: Logs;
  asks: Pick<AskStore, "openRequests">;
  sessions: Pick<Sessions, "look" | "find" | "list">;
}

/** Creates the watcher of a replica. */
export function createWatcher(parts: WatcherParts) {
  // The log of a session also has the requests of its descendants.
  const feed = createFeed(parts, async (event, { id }) =>
    isAboutAsk(event) && event.event.value.sessionId === id ? event : undefined,
  );
  return {
    /** Returns which requests a principal may see, limited to a session and its descendants if one is named. */
    visibility: (principal: Principal, sessionId: string): Promise<SeesAsk> =>
      askVisibility(parts, principal, sessionId),
    /** Yields the open requests, then a mark, then every request, vote and settlement, until the signal is aborted. */
    async *watch(
      principal: Principal,
      { sessionId, heartbeatMs: beatMs = defaultHeartbeatMs }: { sessionId: string; heartbeatMs?: number | undefined },
      signal: AbortSignal,
    ): AsyncGenerator<WatchedAsk> {
      const sees = await askVisibility(parts, principal, sessionId);
      const reader = {
        sees: ({ rootSessionId }: Session) => sees.root === undefined || rootSessionId === sees.root,
        position: positionAt(0),
      };
      yield* askEvents(parts, sees, followFeed(feed, reader, { beatMs, signal }));
    },
  };
}

async function askVisibility({ sessions }: WatcherParts, principal: Principal, sessionId: string): Promise<SeesAsk> {
  const opened = sessionId === "" ? undefined : await sessions.look(principal, sessionId, "read");
  const all = readsAll(principal);
  const sees = async (request: Pick<PermissionRequest, "sessionId" | "ancestry">): Promise<boolean> => {
    // The token of a run reads its session with those below it, as in its log.
    const within = [sessionId, principal.session ?? ""].filter((id) => id !== "");
    if (!within.every((id) => request.ancestry.includes(id))) return false;
    return all || (await sessions.find(request.sessionId))?.session.owner === principal.id;
  };
  return Object.assign(sees, { root: opened?.session.rootSessionId });
}

async function* askEvents(
  { asks }: WatcherParts,
  sees: SeesAsk,
  items: AsyncIterable<FeedItem<AskEvent>>,
): AsyncGenerator<WatchedAsk> {
  /** Ids of the requests that were yielded and are not settled. */
  const open = new Set<string>();
  for await (const item of items) {
    // Requests of a gap are in no event.
    if (item.kind === "begin" || item.kind === "gap")
      for await (const value of eachOpenRequest(asks, sees.root)) {
        if (open.has(value.id) || !(await sees(value))) continue;
        open.add(value.id);
        yield { event: snapshotEvent(value.sessionId, 0, value.created, { case: "permissionAsked", value }) };
      }
    if (item.kind === "begin") yield { snapshotEnd: true };
    if (item.kind === "beat") yield {};
    if (item.kind !== "event") continue;
    const { case: about, value } = item.value.event;
    if (about === "permissionAsked") {
      if (open.has(value.id) || !(await sees(value))) continue;
      open.add(value.id);
      // A settlement of a request that was not yielded means nothing to this watcher.
    } else if (!open.has(value.permissionId)) continue;
    if (about === "permissionSettled") open.delete(value.permissionId);
    yield { event: item.value };
  }
}

/** An event about a request. */
type AskEvent = SessionEvent & { event: Extract<SessionEvent["event"], { case: `permission${string}` }> };

function isAboutAsk(event: SessionEvent): event is AskEvent {
  return event.event.case?.startsWith("permission") === true;
}
