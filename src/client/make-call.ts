import { randomBytes } from "node:crypto";
import type { JsonObject } from "@bufbuild/protobuf";
import type { Client } from "@connectrpc/connect";
import type { SessionEvent } from "../../gen/opencode/tool/v1/event_pb.ts";
import type { SessionService } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import {
  type ToolEffects,
  ToolEffectsSchema,
  type ToolErrorReason,
  ToolErrorReasonSchema,
  type ToolPart,
  type ToolStateCompleted,
  type ToolStateError,
} from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { ToolService } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { checkNumbers } from "./check-numbers.ts";
import { backoffMs, type ClientLink, resumeStream, untilAnswered, waitSignal } from "./resume-stream.ts";

/** Names a call, and what it runs with. */
export interface ClientCallOptions {
  /** The session; it is created if it does not exist. Default: a new one. */
  sessionId?: string;
  /** Names the call in its session: a program that starts again with the same ids attaches to its call. Default: a new one. */
  callId?: string;
  /** The session from which it was started, for a session that is a child of another one. */
  parentSessionId?: string;
  /** `NAME` or `NAME/directory`, for a session that is created. */
  workspace?: string;
  agent?: string;
  /** Maximum duration of the run, without the wait for an approver. */
  timeoutMs?: number;
  metadata?: JsonObject;
  /** The definition that the model was shown. If the tool has another one by then, the call ends STALE_TOOL. */
  definitionId?: string;
  /** The calling model and its provider, for tools that depend on it. */
  providerId?: string;
  modelId?: string;
  /** Ends the wait. The call goes on; `tools.cancelTool` cancels it. */
  signal?: AbortSignal;
}

/** A call ended without a result. */
export class CallFailed extends Error {
  override name = "CallFailed";
  readonly part: ToolPart;
  readonly reason: ToolErrorReason;
  /** Effects of the tool: `NONE` if it has changed nothing. */
  readonly effects: ToolEffects;
  constructor(part: ToolPart, { error, reason, effects }: ToolStateError) {
    const { tool, callId } = part;
    const [why, changed] = [ToolErrorReasonSchema.value[reason], ToolEffectsSchema.value[effects]];
    super(`${tool} (${callId}) ended with ${why?.localName}, effects ${changed?.localName}: ${error}`);
    this.part = part;
    this.reason = reason;
    this.effects = effects;
  }
}

/** The generated clients that calls need. */
export interface CallClients {
  readonly tools: Client<typeof ToolService>;
  readonly sessions: Client<typeof SessionService>;
  readonly link: ClientLink;
}

/** Time that one request waits for the end of its call. */
const waitMs = 60_000;

/**
 * Makes a call and waits for its end, across restarts of the service. Throws `CallFailed` if it ends without a result, and a
 * `RangeError` for an integer beyond 2^53.
 */
export async function callToEnd(
  clients: CallClients,
  tool: string,
  input: JsonObject,
  options: ClientCallOptions = {},
): Promise<ToolStateCompleted> {
  const { storeId: expectedStoreId, signal, fields, ...ids } = await nameCall(clients, tool, input, options);
  const request = { ...ids, ...fields, expectedStoreId, waitMs };
  for (;;) {
    const send = () => clients.tools.callTool(request, { signal, timeoutMs: 0 });
    const { part } = await untilAnswered(clients.link, signal, send);
    if (part?.state.case === "completed") return part.state.value;
    if (part?.state.case === "error") throw new CallFailed(part, part.state.value);
  }
}

/**
 * Makes a call and yields its events up to the terminal state, across restarts of the service, each once. The last event is a part;
 * a failed call does not throw.
 */
export async function* streamCall(
  clients: CallClients,
  tool: string,
  input: JsonObject,
  options: ClientCallOptions = {},
): AsyncGenerator<SessionEvent> {
  const { storeId, signal, fields, ...ids } = await nameCall(clients, tool, input, options);
  const frames = resumeStream({
    start: { afterSeq: 0n, storeId },
    signal,
    pauseMs: backoffMs,
    open: ({ afterSeq, storeId: expectedStoreId }) =>
      clients.tools.executeTool({ ...ids, ...fields, afterSeq, expectedStoreId }, { signal, timeoutMs: 0 }),
    isLast: ({ event }) => event !== undefined && isTerminal(event),
  });
  for await (const { event } of frames) if (event) yield event;
}

function isTerminal({ event }: SessionEvent): boolean {
  return event.case === "part" && (event.value.state.case === "completed" || event.value.state.case === "error");
}

/** Gives a call its ids, and creates its session if it does not exist, so that each later request may be repeated. */
async function nameCall({ sessions, link }: CallClients, tool: string, input: JsonObject, options: ClientCallOptions) {
  const { sessionId = `ses_${randomBytes(16).toString("hex")}`, callId = `call_${randomBytes(16).toString("hex")}` } =
    options;
  const { workspace = "", parentSessionId = "" } = options;
  const signal = waitSignal(link, options.signal);
  const { agent = "", timeoutMs = 0, metadata, definitionId = "", providerId = "", modelId = "" } = options;
  checkNumbers(`the input of ${tool}`, input);
  checkNumbers(`the metadata of the call of ${tool}`, metadata);
  const session = { sessionId, workspace, parentSessionId };
  const { storeId } = await untilAnswered(link, signal, () => sessions.createSession(session, { signal }));
  const fields = { agent, timeoutMs, ...(metadata && { metadata }), definitionId, providerId, modelId };
  return { sessionId, callId, tool, input, storeId, signal, fields };
}
