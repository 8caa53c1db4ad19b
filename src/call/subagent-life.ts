import type { Session } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import type { Engine } from "./engine.ts";
import type { CallRecord } from "./ports.ts";

/** Sessions of a tree that are read at once. */
const pageSize = 100;
/** Enough for the last event of a log. */
const lastEventBytes = 1;

/**
 * Checks if a call that started a subagent still works: a session below its own has an open call, or had an event within
 * `reportMs`. The agent reports such a call only when the subagent is done.
 */
export async function hasLiveSubagent(engine: Engine, { ref, part }: CallRecord): Promise<boolean> {
  const { foreign, store } = engine;
  if (!foreign.tool(part.tool).permissions?.includes("task")) return false;
  for (let before: string | undefined; ; ) {
    const page = await store.listSessions({ root: ref.root, limit: pageSize, ...(before && { before }) });
    for (const session of page)
      if (session.parentSessionId === ref.sessionId && (await isLive(engine, session))) return true;
    if (page.length < pageSize) return false;
    before = page.at(-1)?.id;
  }
}

async function isLive({ limits, store }: Engine, { id: sessionId, lastSeq }: Session): Promise<boolean> {
  if ((await store.listCalls({ sessionId, open: true, limit: 1 })).length > 0) return true;
  const { events } = await store.readLog(sessionId, Number(lastSeq) - 1, lastEventBytes);
  return events.some(({ time }) => time + limits.reportMs > store.now());
}
