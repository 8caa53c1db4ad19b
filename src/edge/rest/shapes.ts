import type { SessionEvent, ToolOutput } from "../../../gen/opencode/tool/v1/event_pb.ts";
import {
  PermissionAction,
  type PermissionSettled,
  type Question,
} from "../../../gen/opencode/tool/v1/permission_pb.ts";
import type { Session } from "../../../gen/opencode/tool/v1/session_service_pb.ts";
import {
  type FilePart,
  type PermissionRequest,
  ToolEffects,
  ToolErrorReason,
  type ToolPart,
} from "../../../gen/opencode/tool/v1/tool_pb.ts";
import packageJson from "../../../package.json" with { type: "json" };
import { plainOffer } from "../../approval/offers.ts";
import type { AskStore } from "../../approval/ports.ts";
import type { CallRecordReader, OutputStore } from "../../call/ports.ts";
import { isTerminal } from "../../call/state.ts";
import { timeOfId } from "../../core/ids.ts";
import { workspaceRoot } from "../../core/paths.ts";
import { partUpdated, permissionReplied, permissionUpdated } from "../../view/json-form/convert.ts";

/** Directories of the workspace roots, by name. */
export type RootDirectories = ReadonlyMap<string, string>;

/** Version of the service, which sessions and the health check name. */
export const restVersion = packageJson.version;

const noTokens = { input: 0, output: 0, reasoning: 0, cache: { read: 0, write: 0 } };

/** Returns a session in opencode's form. Its project is the workspace root; what a model would cost is zero. */
export function sessionJson(session: Session, roots: RootDirectories) {
  const { id, workspace, parentSessionId, title, agent, metadata, rules, created, closed } = session;
  const root = workspaceRoot(workspace);
  return {
    id,
    slug: id,
    projectID: root,
    directory: roots.get(root) ?? "",
    path: workspace.slice(root.length + 1),
    ...(parentSessionId !== "" && { parentID: parentSessionId }),
    title: title || id,
    agent,
    version: restVersion,
    cost: 0,
    tokens: noTokens,
    ...(metadata !== undefined && Object.keys(metadata).length > 0 && { metadata }),
    ...(rules.length > 0 && { permission: rules.map(ruleJson) }),
    time: { created, updated: closed || created, ...(closed !== 0 && { archived: closed }) },
  };
}

function ruleJson({ permission, pattern, action }: Session["rules"][number]) {
  return { permission, pattern, action: nameOf(actions, action) };
}

const actions = { allow: PermissionAction.ALLOW, ask: PermissionAction.ASK, deny: PermissionAction.DENY } as const;

/** Returns the action of a rule that a client sends. */
export function actionOf(word: keyof typeof actions): PermissionAction {
  return actions[word];
}

/** Returns a project: a workspace root. */
export function projectJson(name: string, directory: string) {
  return { id: name, worktree: directory, time: { created: 0, updated: 0 }, sandboxes: [] };
}

/** Progress of a running call, which its record does not have. */
interface LiveReport {
  title?: string | undefined;
  metadata?: object | undefined;
}

/** Returns a call as a part of a message. Fields that opencode does not have are in `metadata.toolgate`. */
export function partJson(part: ToolPart, live?: LiveReport) {
  const { id, sessionId: sessionID, messageId: messageID, callId: callID, tool } = part;
  return {
    ...{ id, sessionID, messageID, type: "tool" as const, callID, tool },
    state: stateJson(part, live),
    ...(part.metadata !== undefined && { metadata: part.metadata }),
  };
}

function stateJson(part: ToolPart, live: LiveReport = {}) {
  const { state } = part;
  switch (state.case) {
    case "running": {
      const { input = {}, title = live.title, metadata, time } = state.value;
      return {
        ...{ status: "running" as const, input },
        ...(title !== undefined && { title: live.title ?? title }),
        ...{ metadata: { ...metadata, ...live.metadata }, time: { start: time?.start ?? 0 } },
      };
    }
    case "completed": {
      const { input = {}, output, title, metadata = {}, time, attachments } = state.value;
      return {
        ...{ status: "completed" as const, input, output, title, metadata, time: timeJson(time) },
        ...(attachments.length > 0 && { attachments: attachments.map((file, index) => fileJson(part, file, index)) }),
      };
    }
    case "error": {
      const { input = {}, error, metadata, time, reason, effects } = state.value;
      const toolgate = { reason: nameOf(ToolErrorReason, reason), effects: nameOf(ToolEffects, effects) };
      return { status: "error" as const, input, error, metadata: { ...metadata, toolgate }, time: timeJson(time) };
    }
    default:
      return { status: "pending" as const, input: state.value?.input ?? {}, raw: state.value?.raw ?? "" };
  }
}

const nameOf = (names: Readonly<Record<string, number>>, value: number) =>
  Object.entries(names).find(([, named]) => named === value)?.[0] ?? "";

const timeJson = (time: { start: number; end: number } | undefined) => ({
  start: time?.start ?? 0,
  end: time?.end ?? 0,
});

function fileJson({ id, sessionId: sessionID, messageId: messageID }: ToolPart, file: FilePart, index: number) {
  const { mime, filename, url } = file;
  const named = filename !== undefined && { filename };
  return { id: `${id}_${index}`, sessionID, messageID, type: "file" as const, mime, ...named, url };
}

/** Returns the message of an assistant that contains calls: Toolgate has no messages, only their ids. */
export function messageJson(
  { sessionId: sessionID, messageId: id, agent }: ToolPart,
  directory: string,
  time: { created: number; completed?: number },
) {
  return {
    ...{ id, sessionID, role: "assistant" as const, time, parentID: "", modelID: "", providerID: "toolgate" },
    ...{ mode: agent, agent, path: { cwd: directory, root: directory }, cost: 0, tokens: noTokens },
  };
}

/** Returns an open permission request. */
export function permissionJson({
  id,
  sessionId: sessionID,
  permission,
  patterns,
  metadata,
  always,
  ...more
}: PermissionRequest) {
  return {
    id,
    sessionID,
    permission,
    patterns,
    metadata: { ...metadata, toolgate: shownJson({ ...more, always }) },
    always,
    ...toolJson(more),
  };
}

/** Returns what an approver should see in addition: how it is displayed, warnings, the deadline, and what "always" saves. */
function shownJson({
  display,
  warnings,
  agent,
  expires,
  ...more
}: Pick<PermissionRequest, "display" | "warnings" | "agent" | "expires" | "offers" | "always">) {
  const offer = plainOffer(more);
  return { agent, display, warnings, expires, ...(offer && { always: { text: offer.text, expires: offer.expires } }) };
}

function toolJson({ tool }: Pick<PermissionRequest, "tool">) {
  return tool && { tool: { messageID: tool.messageId, callID: tool.callId } };
}

/** Returns an open permission request that asks a person questions. */
export function questionJson({ id, sessionId: sessionID, question, tool }: PermissionRequest) {
  return { id, sessionID, questions: question.map(oneQuestionJson), ...toolJson({ ...(tool && { tool }) }) };
}

function oneQuestionJson({ question, header, options, multiple, custom }: Question) {
  return {
    question,
    header,
    options: options.map(({ label, description }) => ({ label, description })),
    multiple,
    custom,
  };
}

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
  return partUpdated(part.sessionId, partJson(part, live), time);
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
  const properties = permissionJson(request);
  const { id, sessionID, metadata } = properties;
  const older = permissionUpdated(request);
  return [
    { type: "permission.asked", properties },
    { ...older, properties: { id, sessionID, metadata, ...older.properties } },
  ];
}

async function settledEvents({ asks }: EventSources, settled: PermissionSettled): Promise<RestEvent[]> {
  const { permissionId: requestID, sessionId: sessionID, answers } = settled;
  const isQuestion = ((await asks.findAsk(requestID))?.request.question.length ?? 0) > 0;
  if (!isQuestion) return [permissionReplied(settled)];
  if (answers.length === 0) return [{ type: "question.rejected", properties: { sessionID, requestID } }];
  const given = answers.map(({ values }) => values);
  return [{ type: "question.replied", properties: { sessionID, requestID, answers: given } }];
}
