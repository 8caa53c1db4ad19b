import { AsyncLocalStorage } from "node:async_hooks";
import { hash, randomUUID } from "node:crypto";
import {
  type CallToolRequestParams,
  CLIENT_CAPABILITIES_META_KEY,
  CLIENT_INFO_META_KEY,
  createMcpHandler,
  isInitializeRequest,
  PROTOCOL_VERSION_META_KEY,
  ProtocolError,
  ProtocolErrorCode,
  type ServerContext,
  type ServerEventBus,
} from "@modelcontextprotocol/server";
import packageJson from "../../../package.json" with { type: "json" };
import { callMcpTool, type ToolsAnswer } from "../../agents/mcp/call-tool.ts";
import { watchToolList } from "../../agents/mcp/list-tools.ts";
import { type AbortRules, createMcpServer, type McpScope, toProtocolError } from "../../agents/mcp/mcp-server.ts";
import { type McpClient, type McpSession, mcpClient, openMcpSession } from "../../agents/mcp/mcp-session.ts";
import { detailOf, reasonOf, type ToolgateApi } from "../../agents/mcp/toolgate-api.ts";
import { createUncollectedCalls } from "../../agents/mcp/uncollected-calls.ts";
import { type McpReport, progressTo } from "../../agents/mcp/watch-reports.ts";
import { forEachPrincipal, setNewest } from "../../core/bounded-map.ts";
import { isObject } from "../../core/json.ts";
import type { Logger } from "../../core/logger.ts";
import { headerOf } from "../http/enter-door.ts";
import { isBroken, type Request, type Response } from "../http/handler.ts";
import { fieldOf, legacyClientOf, newLegacySession } from "./legacy-session.ts";
import { createLocalApi, type LocalApiOptions, type LocalSender } from "./local-api.ts";
import type { McpMetrics } from "./mcp-metrics.ts";
import { writeChunk } from "./web-exchange.ts";

/** Options of the handler. */
export interface McpHandlerOptions {
  /** Aborted when the replica drains. */
  shutdownSignal: AbortSignal;
  mcpMetrics: McpMetrics;
  log: Logger;
}

/** Facts about a request that do not depend on the protocol. */
export interface McpExchange extends LocalSender {
  /** Session that the operator chose. */
  readonly pinned: string | undefined;
  /** Session of the legacy protocol; empty if there is none. */
  readonly mcpSessionId: string;
  /** Address of the console. */
  readonly url: string;
}

/** An exchange that is being served, with the client that it describes. */
interface ServedExchange extends McpExchange {
  readonly described: McpClient;
}

/** A request that may be a plain call, its response, and the signal that ends both. */
interface ReceivedCall {
  readonly request: Request;
  readonly json: unknown;
  readonly response: Response;
  readonly signal: AbortSignal;
}

/** Serves MCP requests over HTTP. */
export interface McpHandler {
  /** Answers a plain call without the library; undefined if the request is another one. */
  answerCall(exchange: McpExchange, call: ReceivedCall): Promise<void> | undefined;
  serveExchange(exchange: McpExchange, web: globalThis.Request, json: unknown): Promise<globalThis.Response>;
}

/** Reason of an abort that asks for the end of the call. */
const cancelled = new Error("the client cancelled the request");
const maxSubscriptions = 1_024;
const serverInfo = { name: "toolgate", title: "Toolgate", version: packageJson.version };

/** Creates the handler. Each request gets its own server; what requests share is here. */
export function createMcpHttpHandler(options: LocalApiOptions & McpHandlerOptions): McpHandler {
  const { log, mcpMetrics, shutdownSignal } = options;
  const apiOf = createLocalApi(options);
  const sessionOf = createHttpSessions();
  const uncollectedOf = createUncollectedCalls();
  const running = new Map<string, AbortController>();
  const serving = new AsyncLocalStorage<ServedExchange>();
  const served = () => {
    const exchange = serving.getStore();
    if (exchange === undefined) throw new Error("a request reached the MCP library without passing the door");
    return exchange;
  };
  const bus = createListChanges(() => {
    const exchange = served();
    const { principal, pinned, mcpSessionId, described: client } = exchange;
    const api = apiOf(exchange);
    const session = () => sessionOf({ api, principalId: principal.id, client, pinned, mcpSessionId });
    return { key: JSON.stringify([principal.id, pinned ?? "", client.name]), api, session };
  });
  const handler = createMcpHandler(
    ({ era }) => {
      const exchange = served();
      const { principal, pinned, mcpSessionId, url } = exchange;
      const api = apiOf(exchange);
      const scope: McpScope = {
        ...{ api, era, url, uncollected: uncollectedOf(principal.id), version: packageJson.version },
        client: exchange.described,
        sessionOf: (client) => sessionOf({ api, principalId: principal.id, client, pinned, mcpSessionId }),
        aborts: abortRules(era, exchange, { running, shutdownSignal, mcpMetrics }),
      };
      return createMcpServer(scope);
    },
    {
      ...{ responseMode: "sse", keepAliveMs, maxSubscriptions, bus },
      maxRequestBodySize: options.limits.requestBytes,
      onerror: (error) => log.debug("an MCP request was refused", { error: error.message }),
    },
  );
  // Held calls are answered first.
  shutdownSignal.addEventListener("abort", () => setTimeout(() => void handler.close(), 500).unref());

  return {
    answerCall(exchange, { request, json, response, signal }) {
      const call = plainCallIn(request, json);
      if (call === undefined) return undefined;
      mcpMetrics.count("modern", "tools/call");
      const { principal, pinned, mcpSessionId, url } = exchange;
      const { client, params } = call;
      const api = apiOf(exchange);
      const stream = answerStream(response, call, serverInfo);
      const answer = async () => {
        const session = await sessionOf({ api, principalId: principal.id, client, pinned, mcpSessionId });
        return await callMcpTool({
          ...{ api, era: "modern", client, session, url, params, requestState: undefined },
          uncollected: uncollectedOf(principal.id),
          signal: AbortSignal.any([signal, shutdownSignal]),
          isCancelled: () => !shutdownSignal.aborted && principal.ended?.aborted !== true,
          ...(stream.progress && { progress: stream.progress }),
        });
      };
      return stream.end(answer().catch(toProtocolError)).finally(mcpMetrics.hold());
    },
    async serveExchange(exchange, web, json) {
      mcpMetrics.count(eraOf(json), String(fieldOf(json, "method")));
      cancelLegacy(exchange, json, running);
      const described = describedIn(json) ?? legacyClientOf(exchange.mcpSessionId);
      const response = await serving.run({ ...exchange, described }, () =>
        handler.fetch(web, { ...(json !== undefined && { parsedBody: json }) }),
      );
      if (response.ok && isInitializeRequest(json)) response.headers.set("mcp-session-id", newLegacySession(json));
      return response;
    },
  };
}

function eraOf(json: unknown): "legacy" | "modern" {
  const meta = fieldOf(fieldOf(json, "params"), "_meta");
  return fieldOf(meta, PROTOCOL_VERSION_META_KEY) === undefined ? "legacy" : "modern";
}

/** Returns the client that a modern request describes. */
function describedIn(json: unknown): McpClient | undefined {
  const info = fieldOf(fieldOf(fieldOf(json, "params"), "_meta"), CLIENT_INFO_META_KEY);
  const [name, version] = [fieldOf(info, "name"), fieldOf(info, "version")];
  return typeof name === "string" ? mcpClient({ name, version: String(version ?? "") }, undefined) : undefined;
}

/** A modern client cancels by closing the stream. A legacy client may lose its connection and come back, so that its call goes on. */
function abortRules(
  era: "legacy" | "modern",
  exchange: McpExchange,
  {
    running,
    shutdownSignal,
    mcpMetrics,
  }: { running: Map<string, AbortController> } & Pick<McpHandlerOptions, "shutdownSignal" | "mcpMetrics">,
): AbortRules {
  const { ended } = exchange.principal;
  const serverReasons = [shutdownSignal, ...(ended === undefined ? [] : [ended])];
  return {
    async run(ctx: ServerContext, body) {
      const cancel = new AbortController();
      const key = requestKey(exchange, ctx.mcpReq.id);
      const release = mcpMetrics.hold();
      if (key !== undefined) running.set(key, cancel);
      try {
        return await body(AbortSignal.any([cancel.signal, ...serverReasons, ctx.mcpReq.signal]));
      } finally {
        release();
        if (key !== undefined && running.get(key) === cancel) running.delete(key);
      }
    },
    isCancel: (reason) => reason === cancelled || (era === "modern" && !serverReasons.some((signal) => signal.aborted)),
  };
}

/** Ends the request that a legacy notification cancels. It arrives as a separate request. */
function cancelLegacy(exchange: McpExchange, json: unknown, running: ReadonlyMap<string, AbortController>): void {
  if (fieldOf(json, "method") !== "notifications/cancelled") return;
  const key = requestKey(exchange, fieldOf(fieldOf(json, "params"), "requestId"));
  if (key !== undefined) running.get(key)?.abort(cancelled);
}

/** Identifies a request of a legacy session; undefined outside of one. */
function requestKey({ principal, mcpSessionId }: McpExchange, requestId: unknown): string | undefined {
  return mcpSessionId === "" ? undefined : JSON.stringify([principal.id, mcpSessionId, requestId]);
}

/** A request for the session of a client over HTTP. */
interface SessionRequest {
  readonly api: ToolgateApi;
  readonly principalId: string;
  readonly client: McpClient;
  /** Session that the operator chose. */
  readonly pinned: string | undefined;
  /** Session of the legacy protocol; empty if there is none. */
  readonly mcpSessionId: string;
}

/** Time without a request after which a client without another session begins a new one. */
const idleMs = 12 * 3_600_000;
/** Sessions of one principal that are known; a new client name takes the place of the one that was used least recently. */
const maxKnown = 1_000;

/**
 * Creates the choice of sessions: the one that the operator chose, otherwise one for each legacy session, otherwise one for each
 * principal and name of a client.
 */
function createHttpSessions(now: () => number = Date.now): (request: SessionRequest) => Promise<McpSession> {
  const knownOf = forEachPrincipal(() => new Map<string, { opened: Promise<McpSession>; used: number }>(), now);

  return async ({ api, principalId, client, pinned, mcpSessionId }) => {
    const known = knownOf(principalId);
    const key = JSON.stringify([pinned ?? "", pinned === undefined ? mcpSessionId || client.name : client.name]);
    const current = known.get(key);
    const isCurrent = current !== undefined && now() - current.used < idleMs;
    const sessionId = pinned ?? (mcpSessionId === "" ? newSessionId() : derivedId(principalId, mcpSessionId));
    const opened = isCurrent ? current.opened : openMcpSession(api, { sessionId, client, transport: "http" });
    setNewest(known, key, { opened, used: now() }, maxKnown);
    const forget = () => {
      if (known.get(key)?.opened === opened) known.delete(key);
    };
    try {
      const session = await opened;
      return { ...session, failed: (error) => isGone(error, session, pinned !== undefined) && forget() };
    } catch (error) {
      // A session that was not opened is tried again by the next request.
      forget();
      throw error;
    }
  };
}

/** Checks for a failure after which the next request needs another session. One that the operator chose stays the same if it is closed. */
function isGone(error: unknown, { sessionId }: McpSession, isPinned: boolean): boolean {
  const reason = reasonOf(error);
  if (detailOf(error, "session_id") !== sessionId) return false;
  return reason === "NO_SUCH_SESSION" || (reason === "SESSION_CLOSED" && !isPinned);
}

const newSessionId = () => `ses_${randomUUID().replaceAll("-", "")}`;

/** A legacy session keeps its Toolgate session across restarts and replicas. */
function derivedId(principalId: string, mcpSessionId: string): string {
  return `ses_${hash("sha256", JSON.stringify([principalId, mcpSessionId]), "hex").slice(0, 32)}`;
}

/** The list of tools that a stream of changes is about. */
interface WatchedList extends Pick<Parameters<typeof watchToolList>[0], "api" | "session"> {
  /** Identifies the list: streams with the same key share one watch. */
  readonly key: string;
}

/** Creates the source of list changes for the streams that subscribe to them; `listOf` returns the list of the current request. */
function createListChanges(listOf: () => WatchedList): ServerEventBus {
  const watches = new Map<string, { listeners: Set<() => void>; stop: AbortController }>();
  return {
    publish: () => undefined,
    subscribe(listener) {
      const { key, api, session } = listOf();
      const known = watches.get(key);
      const watch = known ?? { listeners: new Set(), stop: new AbortController() };
      const notify = () => listener({ kind: "tools_list_changed" });
      watch.listeners.add(notify);
      if (known === undefined) {
        const onChange = async () => {
          for (const report of watch.listeners) report();
        };
        watches.set(key, watch);
        void watchToolList({ api, session, onChange }, watch.stop.signal);
      }
      return () => {
        watch.listeners.delete(notify);
        if (watch.listeners.size > 0) return;
        watch.stop.abort();
        if (watches.get(key) === watch) watches.delete(key);
      };
    },
  };
}

/** A tools/call whose answer needs nothing of the library: no round of questions to the client, no state of an earlier response. */
interface PlainCall {
  readonly id: string | number;
  readonly params: CallToolRequestParams;
  readonly client: McpClient;
}

/** The version whose plain calls are answered here. */
const version = "2026-07-28";

/**
 * Returns the plain call that a request is; undefined for every other message, and for one that the library would refuse. It costs
 * half of what the library needs, which makes a server, a web request and a web response for each call.
 */
function plainCallIn(request: Request, json: unknown): PlainCall | undefined {
  const [id, params] = [fieldOf(json, "id"), fieldOf(json, "params")];
  const [name, input, meta] = [fieldOf(params, "name"), fieldOf(params, "arguments"), fieldOf(params, "_meta")];
  const info = fieldOf(meta, CLIENT_INFO_META_KEY);
  const [clientName, clientVersion] = [fieldOf(info, "name"), fieldOf(info, "version")];
  const capabilities = fieldOf(meta, CLIENT_CAPABILITIES_META_KEY);
  const isPlain =
    hasOnly(json, ["jsonrpc", "id", "method", "params"]) &&
    fieldOf(json, "jsonrpc") === "2.0" &&
    (typeof id === "string" || Number.isSafeInteger(id)) &&
    fieldOf(json, "method") === "tools/call" &&
    hasOnly(params, ["name", "arguments", "_meta"]) &&
    typeof name === "string" &&
    /^[\w.-]+$/.test(name) &&
    (input === undefined || isObject(input)) &&
    hasOnly(info, ["name", "version", "title"]) &&
    typeof clientName === "string" &&
    typeof clientVersion === "string" &&
    isObject(capabilities) &&
    !("elicitation" in capabilities) &&
    isToken(fieldOf(meta, "progressToken")) &&
    fieldOf(meta, PROTOCOL_VERSION_META_KEY) === version &&
    headerOf(request, "mcp-protocol-version") === version &&
    headerOf(request, "mcp-method") === "tools/call" &&
    headerOf(request, "mcp-name") === name &&
    headerOf(request, "content-type") === "application/json" &&
    headerOf(request, "accept")?.includes("text/event-stream") === true;
  if (!isPlain) return undefined;
  const client = mcpClient({ name: clientName, version: clientVersion }, undefined);
  return { id: id as string | number, params: params as CallToolRequestParams, client };
}

const hasOnly = (value: unknown, names: readonly string[]) =>
  isObject(value) && Object.keys(value).every((name) => names.includes(name));

const isToken = (value: unknown) => value === undefined || typeof value === "string" || Number.isSafeInteger(value);

/** Interval of comments on a stream that is silent, so that no proxy closes it and no client waits for the head in vain. */
const keepAliveMs = 10_000;
/** Time after which the head is sent without a first event. */
const headMs = 1_000;

/** The stream of events that answers a plain call. */
interface AnswerStream {
  /** Undefined if the client wants none. */
  readonly progress?: (report: McpReport) => Promise<void>;
  /** Ends the stream with the answer. */
  end(answer: Promise<ToolsAnswer>): Promise<void>;
}

/** Opens the stream. `serverInfo` names the server in the result, as the protocol asks. */
function answerStream(response: Response, { id, params }: PlainCall, serverInfo: object): AnswerStream {
  response.statusCode = 200;
  response.setHeader("content-type", "text/event-stream");
  const server = { "io.modelcontextprotocol/serverInfo": serverInfo };
  const send = (text: string) => {
    if (!isBroken(response)) writeChunk(response, text);
  };
  const comment = () => send(": keepalive\n\n");
  let timer = setTimeout(() => {
    comment();
    timer = setInterval(comment, keepAliveMs);
  }, headMs);
  return {
    ...progressTo(params._meta?.progressToken, async (notification) => {
      send(eventOf({ jsonrpc: "2.0", ...notification }));
    }),
    async end(answer) {
      const sent = await answer.then(
        (result) => ({ result: { resultType: "complete", ...result, _meta: { ...result._meta, ...server } } }),
        (error: unknown) => ({ error: errorOf(error) }),
      );
      clearTimeout(timer);
      response.end(eventOf({ jsonrpc: "2.0", id, ...sent }));
    },
  };
}

function errorOf(error: unknown) {
  if (!(error instanceof ProtocolError)) return { code: ProtocolErrorCode.InternalError, message: "Internal error" };
  const { code, message, data } = error;
  return { code, message, ...(data !== undefined && { data }) };
}

const eventOf = (message: object) => `event: message\ndata: ${JSON.stringify(message)}\n\n`;
