import type { SessionEvent } from "../../gen/opencode/tool/v1/event_pb.ts";
import type { PermissionRequest } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { PermissionStore } from "../approval/ports.ts";
import type { Principal } from "../core/principal.ts";
import { createBell, madeEvent } from "./log.ts";
import type { CallStore } from "./ports.ts";
import { readsAll } from "./session-access.ts";
import type { Sessions } from "./sessions.ts";

export type Watcher = ReturnType<typeof createWatcher>;

const heartbeatMs = 15_000;
const pageBytes = 256 * 1024;

/** Watches asks across sessions. */
export function createWatcher({
  store,
  asks,
  sessions,
}: {
  store: CallStore;
  asks: PermissionStore;
  sessions: Sessions;
}) {
  /** Which asks a principal may see, limited to a session and its descendants if one is named. */
  async function visibility(principal: Principal, sessionId: string) {
    const opened = sessionId === "" ? undefined : await sessions.look(principal, sessionId, "read");
    const all = readsAll(principal);
    const sees = async (request: Pick<PermissionRequest, "sessionId" | "ancestry">): Promise<boolean> => {
      if (sessionId !== "" && !request.ancestry.includes(sessionId)) return false;
      return all || (await sessions.find(request.sessionId))?.session.owner === principal.id;
    };
    return Object.assign(sees, { root: opened?.session.rootSessionId });
  }

  return {
    visibility,
    /** All open asks, then a mark, then every ask and settlement, until the signal. Without an event or mark it is a heartbeat. */
    async *watch(
      principal: Principal,
      sessionId: string,
      signal: AbortSignal,
    ): AsyncGenerator<{ event?: SessionEvent; snapshotEnd?: boolean }, never> {
      const sees = await visibility(principal, sessionId);
      const bell = createBell();
      /** For each session with news: the number up to which they were sent. */
      const sent = new Map<string, number>();
      const news = new Set<string>();
      const off = store.onNews(undefined, (id, seq) => {
        if (!sent.has(id)) sent.set(id, seq - 1);
        news.add(id);
        bell.ring();
      });
      const open = new Set<string>();
      try {
        for (let after: string | undefined; ; ) {
          const page = await asks.openAsks({
            ...(sees.root && { root: sees.root }),
            ...(after && { after }),
            limit: 500,
          });
          for (const { request } of page) {
            if (!(await sees(request))) continue;
            open.add(request.id);
            yield {
              event: madeEvent(request.sessionId, 0, request.created, { case: "permissionAsked", value: request }),
            };
          }
          after = page.at(-1)?.request.id;
          if (page.length < 500) break;
        }
        yield { snapshotEnd: true };
        for (;;) {
          for (const id of [...news]) {
            news.delete(id);
            for await (const event of changes(id)) {
              if (event.event.case === "permissionAsked") {
                if (open.has(event.event.value.id) || !(await sees(event.event.value))) continue;
                open.add(event.event.value.id);
                yield { event };
              }
              // A settlement of an ask that was never shown means nothing to this watcher.
              if (event.event.case === "permissionSettled" && open.delete(event.event.value.permissionId))
                yield { event };
            }
          }
          if (news.size > 0) continue;
          if ((await bell.wait(heartbeatMs, signal)) === "quiet") yield {};
        }
      } finally {
        off();
      }

      /** What a session's log says about its own asks since it was last looked at. */
      async function* changes(id: string): AsyncGenerator<SessionEvent> {
        for (;;) {
          const from = sent.get(id) ?? 0;
          const page = await store.readLog(id, from, pageBytes);
          for (const event of page.events) {
            sent.set(id, Number(event.seq));
            const about = event.event;
            if (
              (about.case === "permissionAsked" || about.case === "permissionSettled") &&
              about.value.sessionId === id
            )
              yield event;
          }
          if (page.events.length > 0) continue;
          // The next ring says where to go on, unless it has rung already.
          if (!news.has(id)) sent.delete(id);
          return;
        }
      }
    },
  };
}
