import { z } from "zod";
import { ErrorReason } from "../../../gen/opencode/tool/v1/error_reason_pb.ts";
import type { ToolPart } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { isTerminal } from "../../call/state.ts";
import { newId, timeOfId } from "../../core/ids.ts";
import { pagesOf } from "../../core/pages-of.ts";
import { RequestError } from "../../core/request-error.ts";
import { RequestFailure } from "../api/request-failure.ts";
import { projectPlaceOf } from "./event-frames.ts";
import { type RestCall, type RestRoute, restBody } from "./route.ts";
import { sessionOf } from "./sessions.ts";
import { messageJson, partJson } from "./shapes.ts";

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
  const byMessage = new Map<string, ToolPart[]>();
  for await (const part of partsOf(call, session.id)) {
    const parts = byMessage.get(part.messageId) ?? [];
    byMessage.set(part.messageId, [...parts, part]);
  }
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
