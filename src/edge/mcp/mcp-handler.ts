import { AsyncLocalStorage } from "node:async_hooks";
import {
  CLIENT_INFO_META_KEY,
  createMcpHandler,
  isInitializeRequest,
  PROTOCOL_VERSION_META_KEY,
  type ServerContext,
} from "@modelcontextprotocol/server";
import packageJson from "../../../package.json" with { type: "json" };
import { toProtocolError } from "../../agents/mcp/api-failure.ts";
import { callMcpTool } from "../../agents/mcp/call-tool.ts";
import { type McpClient, mcpClient } from "../../agents/mcp/client-identity.ts";
import { type AbortRules, createMcpServer, type McpScope } from "../../agents/mcp/mcp-server.ts";
import { createUncollectedCalls } from "../../agents/mcp/uncollected-calls.ts";
import type { Logger } from "../../core/logger.ts";
import type { Request, Response } from "../http/handler.ts";
import { createHttpSessions } from "./http-sessions.ts";
import { fieldOf, legacyClientOf, newLegacySession } from "./legacy-session.ts";
import { createListChanges } from "./list-changes.ts";
import { createLocalApi, type LocalApiOptions, type LocalSender } from "./local-api.ts";
import type { McpMetrics } from "./mcp-metrics.ts";
import { answerStream, keepAliveMs, plainCallIn } from "./plain-call.ts";

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
