import type { SessionEvent, ToolOutput } from "../../../gen/opencode/tool/v1/event_pb.ts";
import type { PermissionSettled } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import type { Session } from "../../../gen/opencode/tool/v1/session_service_pb.ts";
import type { PermissionRequest, ToolPart } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import type { AskStore } from "../../approval/ports.ts";
import type { CallRecordReader, OutputStore } from "../../call/ports.ts";
import { isTerminal } from "../../call/state.ts";
import { timeOfId } from "../../core/ids.ts";
import { workspaceRoot } from "../../core/workspace-root.ts";
import {
  type LiveReport,
  messageJson,
  oldPermissionJson,
  partJson,
  permissionJson,
  questionJson,
  type RootDirectories,
  replyOf,
  sessionJson,
} from "./shapes.ts";

/** Sources of the conversion of events. */
export interface EventSources {
  calls: Pick<CallRecordReader, "getCall" | "listCalls">;
  asks: Pick<AskStore, "findAsk">;
  outputs: Pick<OutputStore, "read">;
  roots: RootDirectories;
}

/** An event in opencode's form, without its id. */
export interface RestEvent {
  type: string;
  properties: object;
}

/** Maximum length of a running command's output in an event, of which the end is sent each time, in bytes. */
const liveOutputBytes = 4_096;

/**
 * Returns the events of opencode that an event of a session stands for. Each describes the state as it is and replaces the ones
 * before it, so a reader that gets one twice is not misled.
 */
export async function restEvents(sources: EventSources, event: SessionEvent, session: Session): Promise<RestEvent[]> {
  const first = event.seq === 1n ? [sessionChange("session.created", session, sources.roots)] : [];
  return [...first, ...(await eventsOf(sources, event, session))];
}

/** Returns an event about a session itself. */
export function sessionChange(
  type: `session.${"created" | "updated" | "deleted"}`,
  session: Session,
  roots: RootDirectories,
): RestEvent {
  return { type, properties: { sessionID: session.id, info: sessionJson(session, roots) } };
}

async function eventsOf(
  sources: EventSources,
  { event, time, sessionId }: SessionEvent,
  session: Session,
): Promise<RestEvent[]> {
  switch (event.case) {
    case "part":
      return await partEvents(sources, event.value, time, session);
    case "progress": {
      const { title, metadata, callId } = event.value;
      return await liveEvents(sources, sessionId, callId, time, { title, metadata });
    }
    case "output": {
      const { callId } = event.value;
      const output = await outputEnd(sources, session.rootSessionId, event.value);
      return await liveEvents(sources, sessionId, callId, time, { metadata: { output } });
    }
    case "permissionAsked":
      // The log of a session also has the requests of its descendants.
      return event.value.sessionId === sessionId ? askedEvents(event.value) : [];
    case "permissionSettled":
      return event.value.sessionId === sessionId ? await settledEvents(sources, event.value) : [];
    default:
      return [];
  }
}

async function partEvents(
  { calls, roots }: EventSources,
  part: ToolPart,
  time: number,
  { id: sessionID, workspace }: Session,
): Promise<RestEvent[]> {
  const hasEnded = isTerminal(part);
  const updated = partEvent(part, time);
  const isAccepted = part.state.case === "pending" && part.permissionIds.length === 0;
  if (!hasEnded && !isAccepted) return [updated];
  const ends = { created: timeOfId(part.id), ...(hasEnded && { completed: time }) };
  const info = messageJson(part, roots.get(workspaceRoot(workspace)) ?? "", ends);
  const message = { type: "message.updated", properties: { sessionID, info } };
  const isIdle = hasEnded && (await calls.listCalls({ sessionId: sessionID, open: true, limit: 1 })).length === 0;
  const status = { type: "session.status", properties: { sessionID, status: { type: isIdle ? "idle" : "busy" } } };
  const idle = isIdle ? [{ type: "session.idle", properties: { sessionID } }] : [];
  return hasEnded ? [updated, message, status, ...idle] : [message, updated, status];
}

function partEvent(part: ToolPart, time: number, live?: LiveReport): RestEvent {
  return { type: "message.part.updated", properties: { sessionID: part.sessionId, part: partJson(part, live), time } };
}

/** Returns the running call with what it reports; nothing if it does not run any more. */
async function liveEvents(
  { calls }: EventSources,
  sessionId: string,
  callId: string,
  time: number,
  live: LiveReport,
): Promise<RestEvent[]> {
  const part = (await calls.getCall(sessionId, callId))?.part;
  return part?.state.case === "running" ? [partEvent(part, time, live)] : [];
}

/** Reads the end of what a call has written up to an event. */
async function outputEnd(
  { outputs }: EventSources,
  root: string,
  { output, offset, length }: ToolOutput,
): Promise<string> {
  const end = Number(offset) + length;
  const start = Math.max(0, end - liveOutputBytes);
  const read = await outputs.read(root, output.slice(output.indexOf(":") + 1), start, end - start);
  return Buffer.from(read?.data ?? []).toString();
}

function askedEvents(request: PermissionRequest): RestEvent[] {
  if (request.question.length > 0) return [{ type: "question.asked", properties: questionJson(request) }];
  return [
    { type: "permission.asked", properties: permissionJson(request) },
    { type: "permission.updated", properties: oldPermissionJson(request) },
  ];
}

async function settledEvents(
  { asks }: EventSources,
  { permissionId: requestID, sessionId: sessionID, outcome, answers }: PermissionSettled,
): Promise<RestEvent[]> {
  const isQuestion = ((await asks.findAsk(requestID))?.request.question.length ?? 0) > 0;
  if (!isQuestion) {
    const reply = replyOf(outcome);
    const properties = { sessionID, requestID, reply, permissionID: requestID, response: reply };
    return [{ type: "permission.replied", properties }];
  }
  if (answers.length === 0) return [{ type: "question.rejected", properties: { sessionID, requestID } }];
  const given = answers.map(({ values }) => values);
  return [{ type: "question.replied", properties: { sessionID, requestID, answers: given } }];
}
