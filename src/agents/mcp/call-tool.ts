import { randomUUID } from "node:crypto";
import { setTimeout as delay } from "node:timers/promises";
import { type JsonObject, toJson } from "@bufbuild/protobuf";
import { type Value, ValueSchema } from "@bufbuild/protobuf/wkt";
import {
  type CallToolRequestParams,
  type CallToolResult,
  type ContentBlock,
  type InputRequiredResult,
  inputRequired,
  ProtocolError,
  ProtocolErrorCode,
} from "@modelcontextprotocol/server";
import {
  type FilePart,
  ToolErrorReason,
  type ToolPart,
  type ToolStateCompleted,
} from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { enumWord } from "../../view/words.ts";
import { type HeldCall, holdCall, isEnded, type LookAtCall } from "./hold-call.ts";
import type { McpClient, McpSession } from "./mcp-session.ts";
import {
  callHandle,
  linkText,
  linkToRequest,
  openCallResult,
  progressText,
  readCallHandle,
  waitToolName,
} from "./open-call-result.ts";
import { outputUri, readWholeOutput } from "./output-resources.ts";
import { apiFailureText, isLostConnection, reasonOf, type ToolgateApi } from "./toolgate-api.ts";
import { type McpCall, type UncollectedCalls, uncollectedMs } from "./uncollected-calls.ts";
import { type McpReport, watchReports } from "./watch-reports.ts";

/** A tools/call, independent of transport and era. */
export interface ToolsCall {
  readonly api: ToolgateApi;
  readonly era: "legacy" | "modern";
  readonly client: McpClient;
  readonly session: McpSession;
  readonly uncollected: UncollectedCalls;
  /** Address of the console. */
  readonly url: string;
  readonly params: CallToolRequestParams;
  /** State that an earlier response gave to the client; undefined in the first round. It is of unknown origin. */
  readonly requestState: string | undefined;
  /** Aborted when nobody waits for the response. */
  readonly signal: AbortSignal;
  /** Returns true if the abort asks for the end of the call. */
  isCancelled(): boolean;
  /** Sends a progress notification; undefined if the client wants none. */
  readonly progress?: (report: McpReport) => Promise<void>;
  /** Shows a person a link, on a connection on which the client can be asked while its request is open. */
  showLink?(message: string, url: string): void;
}

/** The answer to a tools/call. */
export type ToolsAnswer = CallToolResult | InputRequiredResult;

/** Runs a call, or continues one, and returns its result, or that it has none yet. */
export async function callMcpTool(request: ToolsCall): Promise<ToolsAnswer> {
  const { name } = request.params;
  try {
    if (name === waitToolName) return await waitForCall(request);
    return await runCall(request);
  } catch (error) {
    request.session.failed?.(error);
    if (error instanceof ProtocolError || isLostConnection(error)) throw error;
    return { isError: true, content: [{ type: "text", text: apiFailureText(error) }] };
  }
}

/** Waits for the call that the model names, which counts as collecting it. */
async function waitForCall(request: ToolsCall): Promise<ToolsAnswer> {
  const handle = request.params.arguments?.call_id;
  if (typeof handle !== "string" || handle === "") {
    throw new ProtocolError(
      ProtocolErrorCode.InvalidParams,
      "call_id is missing; use the one that the earlier result names",
    );
  }
  const ref = readCallHandle(handle, request.session.sessionId);
  const look = lookById(request.api, ref);
  const call = request.uncollected.collect(ref.sessionId, ref.callId);
  return await followCall(request, ref, look, () => call && request.uncollected.add(call));
}

async function runCall(request: ToolsCall): Promise<ToolsAnswer> {
  const { api, client, params, session, uncollected } = request;
  const { _meta: meta, name: tool } = params;
  const input = (params.arguments ?? {}) as JsonObject;
  const known =
    callOfRound(request, { tool, input }) ??
    (await takeUncollected(request, { sessionId: session.sessionId, tool, input }));
  const call: McpCall = known ?? {
    sessionId: session.sessionId,
    callId: callIdIn(meta) ?? `call_${randomUUID().replaceAll("-", "")}`,
    tool,
    input,
  };
  const definitionId = meta?.["toolgate/definitionId"];
  const metadata = { mcp: { client: client.name, version: client.version } };
  const headers = traceHeaders(meta);
  const look: LookAtCall = async (waitMs, signal) => {
    const sent = { ...call, metadata, ...(typeof definitionId === "string" && { definitionId }) };
    const response = await api.tools.callTool({ ...sent, waitMs }, { headers, ...(signal && { signal }) });
    if (response.part === undefined) throw new Error("the service sent no call");
    return { part: response.part, permissions: response.permissions };
  };
  return await followCall(request, call, look, () => uncollected.add(call));
}

/** Holds the request, and answers it with the result or with the state of the call. */
async function followCall(
  request: ToolsCall,
  ref: Pick<McpCall, "sessionId" | "callId">,
  look: LookAtCall,
  leaveUncollected: () => void,
): Promise<ToolsAnswer> {
  const { api, client, era, session, signal, url } = request;
  const asksForLink = era === "modern" && client.opensLinks && request.requestState === undefined;
  let isShown = false;
  // The watch begins before the call, so that it misses no report.
  const isWatched = request.progress !== undefined || asksForLink || request.showLink !== undefined;
  const reports = isWatched ? await watchReports(api, ref, request.progress) : undefined;
  let held: HeldCall;
  try {
    held = await holdCall(look, {
      holdMs: session.holdMs,
      signal,
      ...(reports && { asked: reports.asked }),
      async report(view) {
        const [first] = view?.permissions ?? [];
        if (first !== undefined && !isShown) request.showLink?.(linkText(view), linkToRequest(url, first));
        isShown ||= first !== undefined;
        const message = view?.part.state.case === "running" ? reports?.latestMessage() : undefined;
        await request.progress?.({ message: message ?? progressText(view) });
      },
      isEnough: ({ permissions }) => asksForLink && permissions.length > 0,
    });
    if (held.view && isEnded(held.view.part)) await reports?.reach(held.view.part.revision, signal);
  } catch (error) {
    // Whether the service has the call is unknown: the same call again asks it.
    leaveUncollected();
    throw error;
  } finally {
    reports?.stop();
  }
  const { view, isLost } = held;
  if (view !== undefined && isEnded(view.part) && !signal.aborted)
    return await endedCallResult(view.part, { api, era, ownSessionId: session.sessionId });
  if (signal.aborted && request.isCancelled()) {
    await api.tools.cancelTool({ ...ref, message: "The client cancelled the call." });
    return { isError: true, content: [{ type: "text", text: "The call was cancelled." }] };
  }
  // The outcome has not reached the client, so that the same call again must not run it twice.
  if (!(signal.aborted && view?.part.state.case === "running")) leaveUncollected();
  const [asked] = view?.permissions ?? [];
  if (!asksForLink || asked === undefined || isLost) return openCallResult({ ...held, ...ref, url });
  const link = inputRequired.elicitUrl({ message: linkText(view), url: linkToRequest(url, asked) });
  return inputRequired({ inputRequests: { approval: link }, requestState: callHandle(ref) });
}

/** Returns the call that the client's next round continues. Its input is compared by the service. */
function callOfRound(
  { requestState, session, uncollected }: ToolsCall,
  request: Pick<McpCall, "tool" | "input">,
): McpCall | undefined {
  if (requestState === undefined) return undefined;
  const ref = readCallHandle(requestState, session.sessionId);
  return uncollected.collect(ref.sessionId, ref.callId) ?? { ...ref, ...request };
}

/** Returns the host's id of the use of the tool: the same use again is then the same call. */
function callIdIn(meta: CallToolRequestParams["_meta"]): string | undefined {
  const id = meta?.["claudecode/toolUseId"];
  return typeof id === "string" && /^[!-z|~]{1,128}$/.test(id) ? id : undefined;
}

function traceHeaders(meta: CallToolRequestParams["_meta"]): Record<string, string> {
  const headers: Record<string, string> = {};
  for (const name of ["traceparent", "tracestate"]) {
    const value = meta?.[name];
    if (typeof value === "string" && /^[ -~]{1,512}$/.test(value)) headers[name] = value;
  }
  return headers;
}

/** Maximum size of a file that is sent inside a result. */
const maxInlineBytes = 1_048_576;
/** Maximum size of structured output: hosts may show it to the model in place of the bounded text. */
const maxStructuredBytes = 16_384;

/** The request whose result is made. */
interface ResultContext {
  readonly api: ToolgateApi;
  readonly era: "legacy" | "modern";
  /** Session of the client; output of another one is linked with its session. */
  readonly ownSessionId: string;
}

/** Makes the result of a call that has ended. A failure that the model can repair is a result; an unknown tool is an error. */
async function endedCallResult(part: ToolPart, context: ResultContext): Promise<CallToolResult> {
  const { sessionId, callId, state } = part;
  const meta = { "toolgate/sessionId": sessionId, "toolgate/callId": callId, "toolgate/state": state.case ?? "" };
  if (state.case === "error") {
    const { reason, error } = state.value;
    if (reason === ToolErrorReason.UNKNOWN_TOOL) throw new ProtocolError(ProtocolErrorCode.InvalidParams, error);
    return {
      isError: true,
      content: [{ type: "text", text: error }],
      _meta: { ...meta, "toolgate/reason": enumWord(ToolErrorReason, reason) },
    };
  }
  if (state.case !== "completed") throw new Error(`call ${callId} has not ended`);
  const { output, metadata, attachments } = state.value;
  const files = await Promise.all(attachments.map((file) => fileContent(file, part, context)));
  const structured = structuredOf(state.value, context);
  return {
    content: [{ type: "text", text: output }, ...files, ...wholeOutput(state.value, part, context)],
    ...(structured !== undefined && { structuredContent: structured }),
    _meta: { ...meta, ...(metadata?.exit !== undefined && { "toolgate/exit": metadata.exit }) },
  };
}

/** Returns structured output that is complete and small. Legacy clients accept objects only. */
function structuredOf(
  { structuredOutput, metadata }: ToolStateCompleted,
  { era }: ResultContext,
): CallToolResult["structuredContent"] | undefined {
  if (structuredOutput === undefined || metadata?.truncated === true) return undefined;
  const json = toJson(ValueSchema, structuredOutput);
  const isObject = typeof json === "object" && json !== null && !Array.isArray(json);
  if (era === "legacy" && !isObject) return undefined;
  return Buffer.byteLength(JSON.stringify(json)) > maxStructuredBytes ? undefined : structuredJson(structuredOutput);
}

const structuredJson = (value: Value) => toJson(ValueSchema, value) as CallToolResult["structuredContent"];

/** Links the whole of an output that was truncated. */
function wholeOutput(
  { metadata }: ToolStateCompleted,
  { tool, sessionId }: ToolPart,
  { ownSessionId }: ResultContext,
): ContentBlock[] {
  const { outputPath, originalSize } = metadata ?? {};
  if (typeof outputPath !== "string") return [];
  return [
    {
      type: "resource_link",
      uri: outputUri(outputPath, sessionId, ownSessionId),
      name: `whole output of ${tool}`,
      mimeType: "text/plain",
      ...(typeof originalSize === "number" && { size: originalSize }),
    },
  ];
}

/** Embeds an image or a sound up to a limit, and links any other file. */
async function fileContent(
  { mime, url, filename, size }: FilePart,
  { sessionId }: ToolPart,
  { api, ownSessionId }: ResultContext,
): Promise<ContentBlock> {
  const [kind] = mime.split("/", 1);
  const inline = /^data:[^,]*;base64,(.*)$/s.exec(url)?.[1];
  if (kind === "image" || kind === "audio") {
    const stored = inline === undefined && size <= BigInt(maxInlineBytes);
    const data = stored ? (await readWholeOutput(api, sessionId, url, maxInlineBytes)).toString("base64") : inline;
    if (data !== undefined) return { type: kind, data, mimeType: mime };
  }
  const name = filename ?? "file";
  if (inline !== undefined)
    return {
      type: "resource",
      resource: { uri: `attachment:${encodeURIComponent(name)}`, mimeType: mime, blob: inline },
    };
  return {
    type: "resource_link",
    uri: outputUri(url, sessionId, ownSessionId),
    name,
    mimeType: mime,
    size: Number(size),
  };
}

/** Looks at a call whose input is not known, every second. */
function lookById({ tools }: ToolgateApi, ref: { sessionId: string; callId: string }): LookAtCall {
  return async (waitMs, signal) => {
    const until = performance.now() + waitMs;
    for (;;) {
      const { part, permissions } = await tools.getToolPart(ref, { ...(signal && { signal }) });
      if (part === undefined) throw new Error("the service sent no call");
      const left = until - performance.now();
      if (isEnded(part) || left <= 0) return { part, permissions };
      await delay(Math.min(left, 1_000), undefined, { ...(signal && { signal }) }).catch(() => undefined);
    }
  };
}

/** Returns the uncollected call that the same request continues; undefined if there is none whose result still counts. */
async function takeUncollected(
  { api, uncollected }: { api: ToolgateApi; uncollected: UncollectedCalls },
  request: Omit<McpCall, "callId">,
): Promise<McpCall | undefined> {
  for (;;) {
    const call = uncollected.take(request);
    if (call === undefined) return undefined;
    const { sessionId, callId } = call;
    const found = await api.tools.getToolPart({ sessionId, callId }).catch((error: unknown) => {
      if (isLostConnection(error)) uncollected.add(call);
      if (reasonOf(error) === undefined || isLostConnection(error)) throw error;
      return undefined;
    });
    if (found?.part !== undefined && isCollectable(found.part)) return call;
  }
}

/** A result counts for a time; a call that was cancelled has none. */
function isCollectable({ state }: ToolPart): boolean {
  if (state.case === "error" && state.value.reason === ToolErrorReason.CANCELLED) return false;
  const end = state.case === "completed" || state.case === "error" ? state.value.time?.end : undefined;
  return end === undefined || Date.now() - end < uncollectedMs;
}
