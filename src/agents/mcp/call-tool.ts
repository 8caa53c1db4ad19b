import { randomUUID } from "node:crypto";
import type { JsonObject } from "@bufbuild/protobuf";
import {
  type CallToolRequestParams,
  type CallToolResult,
  type InputRequiredResult,
  inputRequired,
  ProtocolError,
  ProtocolErrorCode,
} from "@modelcontextprotocol/server";
import { apiFailureText, isLostConnection } from "./api-failure.ts";
import type { McpClient } from "./client-identity.ts";
import { endedCallResult } from "./ended-call-result.ts";
import { type HeldCall, holdCall, isEnded, type LookAtCall } from "./hold-call.ts";
import { lookById } from "./look-at-call.ts";
import type { McpSession } from "./mcp-session.ts";
import {
  callHandle,
  linkText,
  linkToRequest,
  openCallResult,
  progressText,
  readCallHandle,
  waitToolName,
} from "./open-call-result.ts";
import { takeUncollected } from "./take-uncollected.ts";
import type { ToolgateApi } from "./toolgate-api.ts";
import type { McpCall, UncollectedCalls } from "./uncollected-calls.ts";
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
