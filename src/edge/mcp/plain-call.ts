import {
  type CallToolRequestParams,
  CLIENT_CAPABILITIES_META_KEY,
  CLIENT_INFO_META_KEY,
  PROTOCOL_VERSION_META_KEY,
  ProtocolError,
  ProtocolErrorCode,
} from "@modelcontextprotocol/server";
import type { ToolsAnswer } from "../../agents/mcp/call-tool.ts";
import { type McpClient, mcpClient } from "../../agents/mcp/client-identity.ts";
import { type McpReport, progressTo } from "../../agents/mcp/watch-reports.ts";
import { headerOf } from "../http/check-origin.ts";
import type { Request, Response } from "../http/handler.ts";
import { fieldOf } from "./legacy-session.ts";
import { writeChunk } from "./web-exchange.ts";

/** A tools/call whose answer needs nothing of the library: no round of questions to the client, no state of an earlier response. */
export interface PlainCall {
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
export function plainCallIn(request: Request, json: unknown): PlainCall | undefined {
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

const isObject = (value: unknown): value is object =>
  typeof value === "object" && value !== null && !Array.isArray(value);

const hasOnly = (value: unknown, names: readonly string[]) =>
  isObject(value) && Object.keys(value).every((name) => names.includes(name));

const isToken = (value: unknown) => value === undefined || typeof value === "string" || Number.isSafeInteger(value);

/** Interval of comments on a stream that is silent, so that no proxy closes it and no client waits for the head in vain. */
export const keepAliveMs = 10_000;
/** Time after which the head is sent without a first event. */
const headMs = 1_000;

/** The stream of events that answers a plain call. */
export interface AnswerStream {
  /** Undefined if the client wants none. */
  readonly progress?: (report: McpReport) => Promise<void>;
  /** Ends the stream with the answer. */
  end(answer: Promise<ToolsAnswer>): Promise<void>;
}

/** Opens the stream. `serverInfo` names the server in the result, as the protocol asks. */
export function answerStream(response: Response, { id, params }: PlainCall, serverInfo: object): AnswerStream {
  response.statusCode = 200;
  response.setHeader("content-type", "text/event-stream");
  const server = { "io.modelcontextprotocol/serverInfo": serverInfo };
  const send = (text: string) => {
    if (!response.destroyed) writeChunk(response, text);
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
