import { z } from "zod";
import { ErrorReason } from "../../../gen/opencode/tool/v1/error_reason_pb.ts";
import type { Session } from "../../../gen/opencode/tool/v1/session_service_pb.ts";
import { PermissionReply, type PermissionRequest, type ToolPart } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { unknownPermission } from "../../approval/refusals.ts";
import { announceInFeed, type Feed } from "../../call/feed.ts";
import type { Sessions } from "../../call/sessions.ts";
import { isTerminal } from "../../call/state.ts";
import { newId, timeOfId } from "../../core/ids.ts";
import { pagesOf } from "../../core/pages-of.ts";
import { workspaceRoot } from "../../core/paths.ts";
import type { Principal } from "../../core/principal.ts";
import { RequestError } from "../../core/request-error.ts";
import { invalidField, RequestFailure } from "../api/request-failure.ts";
import type { LocalApi } from "../mcp/local-api.ts";
import { type EventFrames, framesOf, projectPlaceOf } from "./event-stream.ts";
import {
  actionOf,
  type EventSources,
  messageJson,
  partJson,
  permissionJson,
  questionJson,
  sessionChange,
  sessionJson,
} from "./shapes.ts";

/** Domain that the routes read, beside the services. */
export interface RestDomain {
  sources: EventSources;
  sessions: Pick<Sessions, "workspaceAt">;
  feed: Feed<EventFrames>;
}

/** A request for a route. */
export interface RestCall extends RestDomain {
  principal: Principal;
  /** The services, with the checks of roles and messages that a client of the rpcs meets. */
  api: LocalApi;
  /** Returns a part of the path. */
  part: (name: string) => string;
  query: URLSearchParams;
  body: unknown;
  /** Workspace root of the directory that the request names. */
  workspace: string | undefined;
  signal: AbortSignal;
}

/** A method and a path, in which `:name` stands for a part, and what answers it with JSON. */
export interface RestRoute {
  method: "GET" | "POST" | "PATCH" | "DELETE";
  path: string;
  run: (call: RestCall) => Promise<unknown> | unknown;
}

/** Reads the body of a request; throws INVALID_MESSAGE with the field that does not fit. */
function restBody<Schema extends z.ZodType>({ body }: Pick<RestCall, "body">, schema: Schema): z.output<Schema> {
  const { success, data, error } = schema.safeParse(body ?? {});
  if (success) return data;
  const [issue] = error.issues;
  throw invalidRequest(issue?.path.join(".") ?? "", issue?.message ?? "it does not fit");
}

/** Returns the refusal of a request with a field that the route does not take. */
export function invalidRequest(field: string, fact: string): RequestFailure {
  const where = field === "" ? "the body of the request" : `"${field}" of the request`;
  return invalidField(field, `${where} is not valid: ${fact}`);
}

/** Schema of data that a client attaches. */
const metadataSchema = z.record(z.string(), z.json());

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
async function sessionOf({ api, part, signal }: RestCall): Promise<Session> {
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
  const limit = Number(query.get("limit")) || 100;
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
  if (session.closed === 0) announce(call, "updated", closed);
  return json(call, closed);
}

async function deleteSession(call: RestCall) {
  const session = await sessionOf(call);
  const closed = need(await call.api.sessions.closeSession({ sessionId: session.id }, { signal: call.signal }));
  if (session.closed === 0) announce(call, "deleted", closed);
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

const replies = { once: PermissionReply.ONCE, always: PermissionReply.ALWAYS, reject: PermissionReply.REJECT } as const;
const reply = z.enum(["once", "always", "reject"]);
const oldAnswer = z.object({ response: reply });
const answer = z.object({ reply, message: z.string().default("") });
const questionAnswer = z.object({ answers: z.array(z.array(z.string())) });

/** Routes with which approvers list and answer permission requests. */
export const permissionRoutes: readonly RestRoute[] = [
  {
    method: "GET",
    path: "/permission",
    run: async (call) => (await openRequests(call)).filter((request) => !isQuestion(request)).map(permissionJson),
  },
  {
    method: "POST",
    path: "/permission/:request/reply",
    run(call) {
      const { reply, message } = restBody(call, answer);
      return respond(call, { reply: replies[reply], message });
    },
  },
  {
    method: "POST",
    path: "/session/:id/permissions/:request",
    run: (call) => respond(call, { reply: replies[restBody(call, oldAnswer).response] }, call.part("id")),
  },
  {
    method: "GET",
    path: "/question",
    run: async (call) => (await openRequests(call)).filter(isQuestion).map(questionJson),
  },
  {
    method: "POST",
    path: "/question/:request/reply",
    run(call) {
      const answers = restBody(call, questionAnswer).answers.map((values) => ({ values }));
      return respond(call, { reply: PermissionReply.ONCE, answers });
    },
  },
  {
    method: "POST",
    path: "/question/:request/reject",
    run: (call) => respond(call, { reply: PermissionReply.REJECT }),
  },
];

const isQuestion = ({ question }: PermissionRequest) => question.length > 0;

/** Lists the open requests, of one workspace root if the request names a directory. */
async function openRequests({ api, signal, workspace, feed }: RestCall): Promise<PermissionRequest[]> {
  const pages = await Array.fromAsync(pagesOf((page) => api.permissions.listPermissions(page, { signal })));
  const found: PermissionRequest[] = [];
  for (const request of pages.flatMap(({ permissions }) => permissions)) {
    const session = workspace === undefined ? undefined : (await feed.sessions.find(request.sessionId))?.session;
    if (workspace === undefined || workspaceRoot(session?.workspace ?? "") === workspace) found.push(request);
  }
  return found;
}

/** Answers the request that the path names. The older form names its session as well. */
async function respond(
  { api, part, signal }: RestCall,
  response: { reply: PermissionReply; message?: string; answers?: { values: string[] }[] },
  expectedSession?: string,
): Promise<true> {
  const permissionId = part("request");
  const { permission } = await api.permissions.getPermission({ permissionId }, { signal });
  const sessionId = permission?.sessionId ?? "";
  if (expectedSession !== undefined && expectedSession !== sessionId) throw unknownPermission(permissionId);
  await api.permissions.respondToPermission({ ...response, sessionId, permissionId }, { signal });
  return true;
}

const shellCommand = z.object({
  agent: z.string().default(""),
  command: z.string(),
  messageID: z.string().default(""),
});

/** Routes of messages, which are the calls of a session. What needs a model is refused. */
export const messageRoutes: readonly RestRoute[] = [
  { method: "GET", path: "/session/:id/message", run: listMessages },
  { method: "GET", path: "/session/:id/message/:message", run: getMessage },
  { method: "POST", path: "/session/:id/shell", run: runShell },
  { method: "POST", path: "/session/:id/abort", run: abortSession },
  ...["message", "prompt_async", "command", "summarize", "init", "fork", "revert", "unrevert", "share"].map(
    (name): RestRoute => ({ method: "POST", path: `/session/:id/${name}`, run: () => refuse(name) }),
  ),
];

function refuse(name: string): never {
  const fact = `Toolgate runs no models, so it has no conversation to ${name === "message" ? "continue" : "change"}`;
  const message = `${fact}; send "${name}" to the agent's own server, and let its tools call Toolgate`;
  throw new RequestFailure("invalid_argument", message, { reason: ErrorReason.NOT_SERVED });
}

/** Lists messages in order; `limit` takes the newest ones, `before` those before a message. */
async function listMessages(call: RestCall) {
  const all = await messagesOf(call);
  const before = call.query.get("before");
  const end =
    before === null
      ? all.length
      : Math.max(
          0,
          all.findIndex(({ info }) => info.id === before),
        );
  const limit = Number(call.query.get("limit") ?? end);
  return all.slice(Math.max(0, end - limit), end);
}

async function getMessage(call: RestCall) {
  const id = call.part("message");
  const found = (await messagesOf(call)).find(({ info }) => info.id === id);
  if (found) return found;
  const message = `message ${id} is not known: no call of the session has its id`;
  throw new RequestError(ErrorReason.NO_SUCH_CALL, message, { call_id: id });
}

/** Groups the calls of a session by message, in the order of their first calls. */
async function messagesOf(call: RestCall) {
  const session = await sessionOf(call);
  const parts = await Array.fromAsync(partsOf(call, session.id));
  const byMessage = Map.groupBy(parts, ({ messageId }) => messageId);
  const { directory } = projectPlaceOf(call.sources, session);
  return [...byMessage.values()].map((parts) => messageOf(parts, directory));
}

function messageOf(parts: readonly ToolPart[], directory: string) {
  const [first] = parts;
  if (first === undefined) throw new Error("a message has no call");
  const ends = parts.map(({ state }) =>
    state.case === "completed" || state.case === "error" ? state.value.time?.end : undefined,
  );
  const completed = Math.max(...ends.map((end) => end ?? Number.NaN));
  const time = { created: timeOfId(first.id), ...(!Number.isNaN(completed) && { completed }) };
  return { info: messageJson(first, directory, time), parts: parts.map((part) => partJson(part)) };
}

async function* partsOf({ api, signal }: RestCall, sessionId: string) {
  const pages = pagesOf((page) => api.tools.listToolParts({ ...page, sessionId }, { signal }));
  for await (const { parts } of pages) yield* parts;
}

/** Runs a command with the tool `bash` and answers when it has ended; it goes on if the client leaves. */
async function runShell(call: RestCall) {
  const { agent, command, messageID } = restBody(call, shellCommand);
  const { id: sessionId, ...session } = await sessionOf(call);
  const messageId = messageID || newId("msg", Date.now());
  const request = { sessionId, messageId, callId: newId("call", Date.now()), agent, tool: "bash", input: { command } };
  for (;;) {
    const { part } = await call.api.tools.callTool({ ...request, waitMs: 60_000 }, { signal: call.signal });
    if (part === undefined) throw new Error("a response lacks its part");
    if (isTerminal(part))
      return messageOf([part], projectPlaceOf(call.sources, { ...session, id: sessionId }).directory);
  }
}

/** Cancels the open calls of a session. */
async function abortSession(call: RestCall): Promise<true> {
  const { id: sessionId } = await sessionOf(call);
  for await (const part of partsOf(call, sessionId)) {
    if (isTerminal(part)) continue;
    const request = { sessionId, callId: part.callId, message: "The session was aborted." };
    await call.api.tools.cancelTool(request, { signal: call.signal });
  }
  return true;
}
