import { z } from "zod";
import type { Session } from "../../../gen/opencode/tool/v1/session_service_pb.ts";
import { announceInFeed } from "../../call/feed.ts";
import { pagesOf } from "../../core/pages-of.ts";
import { workspaceRoot } from "../../core/workspace-root.ts";
import { framesOf, projectPlaceOf } from "./event-frames.ts";
import { sessionChange } from "./event-json.ts";
import { invalidRequest, metadataSchema, type RestCall, type RestRoute, restBody } from "./route.ts";
import { actionOf, sessionJson } from "./shapes.ts";

const newSession = z.object({
  parentID: z.string().optional(),
  title: z.string().optional(),
  agent: z.string().optional(),
  metadata: metadataSchema.optional(),
  permission: z
    .array(z.object({ permission: z.string(), pattern: z.string(), action: z.enum(["allow", "ask", "deny"]) }))
    .optional(),
});

const changes = z.object({
  title: z.unknown().optional(),
  metadata: z.unknown().optional(),
  permission: z.unknown().optional(),
  time: z.object({ archived: z.number().optional() }).optional(),
});

/** Routes of sessions. */
export const sessionRoutes: readonly RestRoute[] = [
  { method: "POST", path: "/session", run: createSession },
  { method: "GET", path: "/session", run: listSessions },
  { method: "GET", path: "/session/status", run: sessionStatus },
  { method: "GET", path: "/session/:id", run: async (call) => json(call, await sessionOf(call)) },
  { method: "PATCH", path: "/session/:id", run: changeSession },
  { method: "DELETE", path: "/session/:id", run: deleteSession },
  { method: "GET", path: "/session/:id/children", run: listChildren },
];

/** Returns the session that the path names. */
export async function sessionOf({ api, part, signal }: RestCall): Promise<Session> {
  return need(await api.sessions.getSession({ sessionId: part("id") }, { signal }));
}

async function createSession(call: RestCall) {
  const { parentID = "", title = "", agent = "", metadata, permission = [] } = restBody(call, newSession);
  const session = need(
    await call.api.sessions.createSession(
      {
        ...{
          parentSessionId: parentID,
          title,
          agent,
          rules: permission.map((rule) => ({ ...rule, action: actionOf(rule.action) })),
        },
        ...(metadata && { metadata }),
        // A child works where its parent does.
        ...(parentID === "" && call.workspace !== undefined && { workspace: call.workspace }),
      },
      { signal: call.signal },
    ),
  );
  announce(call, "created", session);
  return json(call, session);
}

/** Lists the open sessions, newest first. Closed ones are what opencode deletes. */
async function listSessions(call: RestCall) {
  const { query, workspace } = call;
  const limit = Number(query.get("limit") ?? 100);
  const start = Number(query.get("start") ?? 0);
  const search = (query.get("search") ?? "").toLowerCase();
  const found: ReturnType<typeof json>[] = [];
  for await (const session of visibleSessions(call)) {
    if (found.length >= limit) break;
    const isWanted =
      session.closed === 0 &&
      session.created >= start &&
      (workspace === undefined || workspaceRoot(session.workspace) === workspace) &&
      (query.get("roots") !== "true" || session.parentSessionId === "") &&
      session.title.toLowerCase().includes(search);
    if (isWanted) found.push(json(call, session));
  }
  return found;
}

/** Returns the sessions that have open calls; as with opencode, one that is not named is idle. */
async function sessionStatus(call: RestCall) {
  const busy: Record<string, { type: "busy" }> = {};
  for await (const { id, closed, workspace } of visibleSessions(call)) {
    if (closed !== 0 || (call.workspace !== undefined && workspaceRoot(workspace) !== call.workspace)) continue;
    const open = await call.sources.calls.listCalls({ sessionId: id, open: true, limit: 1 });
    if (open.length > 0) busy[id] = { type: "busy" };
  }
  return busy;
}

async function changeSession(call: RestCall) {
  const { time, ...others } = restBody(call, changes);
  for (const [field, value] of Object.entries(others))
    if (value !== undefined)
      throw invalidRequest(field, "a session keeps it as it was created; create another session");
  const session = await sessionOf(call);
  if (time?.archived === undefined) return json(call, session);
  const closed = need(await call.api.sessions.closeSession({ sessionId: session.id }, { signal: call.signal }));
  announce(call, "updated", closed);
  return json(call, closed);
}

async function deleteSession(call: RestCall) {
  const closed = need(await call.api.sessions.closeSession({ sessionId: call.part("id") }, { signal: call.signal }));
  announce(call, "deleted", closed);
  return true;
}

async function listChildren(call: RestCall) {
  const { id, rootSessionId } = await sessionOf(call);
  const children: ReturnType<typeof json>[] = [];
  for await (const session of visibleSessions(call, rootSessionId))
    if (session.parentSessionId === id) children.push(json(call, session));
  return children;
}

async function* visibleSessions({ api, signal }: RestCall, rootSessionId = "") {
  const pages = pagesOf((page) => api.sessions.listSessions({ ...page, rootSessionId }, { signal }));
  for await (const { sessions } of pages) yield* sessions;
}

const json = ({ sources }: RestCall, session: Session) => sessionJson(session, sources.roots);

/** Sends an event to the streams of this replica: logs have no event about a session itself. */
function announce({ feed, sources }: RestCall, change: "created" | "updated" | "deleted", session: Session): void {
  const event = sessionChange(`session.${change}`, session, sources.roots);
  announceInFeed(feed, session, framesOf([event], `${session.id}_${change}`, projectPlaceOf(sources, session)));
}

function need({ session }: { session?: Session | undefined }): Session {
  if (session === undefined) throw new Error("a response lacks its session");
  return session;
}
