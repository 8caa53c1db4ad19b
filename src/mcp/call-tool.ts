import { randomUUID } from "node:crypto";
import type { JsonObject } from "@bufbuild/protobuf";
import {
  type CallToolRequestParams,
  type CallToolResult,
  ProtocolError,
  ProtocolErrorCode,
} from "@modelcontextprotocol/server";
import { ToolErrorReason } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { apiFailureText, isLostConnection, reasonOf } from "./api-failure.ts";
import type { McpClient } from "./client-identity.ts";
import { endedCallResult } from "./ended-call-result.ts";
import { holdCall, isEnded, type LookAtCall, type McpCallView } from "./hold-call.ts";
import type { McpSession } from "./mcp-session.ts";
import { openCallResult, progressText, readCallHandle, waitToolName } from "./open-call-result.ts";
import type { ToolgateApi } from "./toolgate-api.ts";
import { type McpCall, type UncollectedCalls, uncollectedMs } from "./uncollected-calls.ts";

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
  /** Aborted when nobody waits for the response. */
  readonly signal: AbortSignal;
  /** Returns true if the abort asks for the end of the call. */
  isCancelled(): boolean;
  /** Sends a progress notification, if the client wants any. */
  progress(message: string): Promise<void>;
}

/** Runs a call, or continues one, and returns its result, or that it has none yet. */
export async function callMcpTool(request: ToolsCall): Promise<CallToolResult> {
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
async function waitForCall(request: ToolsCall): Promise<CallToolResult> {
  const handle = request.params.arguments?.call_id;
  if (typeof handle !== "string" || handle === "") {
    throw new ProtocolError(
      ProtocolErrorCode.InvalidParams,
      "call_id is missing; use the one that the earlier result names",
    );
  }
  const ref = readCallHandle(handle, request.session.sessionId);
  const look = lookById(request, ref);
  const call = request.uncollected.collect(ref.sessionId, ref.callId);
  return await followCall(request, ref, look, () => call && request.uncollected.add(call));
}

async function runCall(request: ToolsCall): Promise<CallToolResult> {
  const { api, client, params, session, uncollected } = request;
  const { _meta: meta, name: tool } = params;
  const input = (params.arguments ?? {}) as JsonObject;
  const known = await takeUncollected(request, { sessionId: session.sessionId, tool, input });
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
  leaveUncollected: () => void = () => undefined,
): Promise<CallToolResult> {
  const { api, era, session, signal, url } = request;
  const held = await holdCall(look, {
    holdMs: session.holdMs,
    signal,
    report: (view) => request.progress(progressText(view)),
  });
  const { view } = held;
  if (view !== undefined && isEnded(view.part) && !signal.aborted)
    return await endedCallResult(view.part, { api, era, ownSessionId: session.sessionId });
  if (signal.aborted && request.isCancelled()) {
    await api.tools.cancelTool({ ...ref, message: "The client cancelled the call." });
    return { isError: true, content: [{ type: "text", text: "The call was cancelled." }] };
  }
  // The outcome has not reached the client, so that the same call again must not run it twice.
  if (!(signal.aborted && view?.part.state.case === "running")) leaveUncollected();
  return openCallResult({ ...held, ...ref, url });
}

/** Returns the uncollected call that the same request continues; undefined if there is none whose result still counts. */
async function takeUncollected(
  { api, uncollected }: ToolsCall,
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
function isCollectable({ state }: McpCallView["part"]): boolean {
  if (state.case === "error" && state.value.reason === ToolErrorReason.CANCELLED) return false;
  const end = state.case === "completed" || state.case === "error" ? state.value.time?.end : undefined;
  return end === undefined || Date.now() - end < uncollectedMs;
}

/** Looks at a call whose input is not known, every second. */
function lookById({ api }: ToolsCall, ref: { sessionId: string; callId: string }): LookAtCall {
  return async (waitMs, signal) => {
    const until = performance.now() + waitMs;
    for (;;) {
      const { part, permissions } = await api.tools.getToolPart(ref, { ...(signal && { signal }) });
      if (part === undefined) throw new Error("the service sent no call");
      const left = until - performance.now();
      if (isEnded(part) || left <= 0) return { part, permissions };
      await pause(Math.min(left, 1_000), signal);
    }
  };
}

/** Resolves after a time, or when the signal is aborted. */
function pause(ms: number, signal: AbortSignal | undefined): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal?.addEventListener(
      "abort",
      () => {
        clearTimeout(timer);
        resolve();
      },
      { once: true },
    );
  });
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
