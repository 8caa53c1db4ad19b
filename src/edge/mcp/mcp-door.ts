import { ToolService } from "../../../gen/opencode/tool/v1/tool_service_pb.ts";
import { checkRole, rolesFor } from "../api/access.ts";
import { invalidField } from "../api/request-failure.ts";
import { type EntryOptions, enterDoor, headerOf } from "../http/enter-door.ts";
import {
  type ConnectionPeer,
  createConnectionPeer,
  type Mount,
  type Request,
  type Response,
  sendWhole,
  signalOfLeaving,
} from "../http/handler.ts";
import type { ByteBudget } from "../http/socket-limits.ts";
import { httpStatusOf } from "../rpc/errors.ts";
import { bodyLimits, readBody } from "../rpc/request-body.ts";
import type { LocalApiOptions } from "./local-api.ts";
import type { McpExchange, McpHandler, McpHandlerOptions } from "./mcp-handler.ts";
import { jsonIn, sendWebResponse, webRequestOf } from "./web-exchange.ts";

/** Options of the door. */
export interface McpDoorOptions extends LocalApiOptions, McpHandlerOptions, EntryOptions {
  budget: ByteBudget;
  isTls: boolean;
  /** The address of links to requests; undefined: that of the client's request. */
  publicUrl: string | undefined;
}

/**
 * Opens the door for MCP clients: `/mcp`, and `/mcp/SESSION` for a session that the operator chooses. The MCP library is loaded by
 * the first request.
 */
export function mcpDoor(options: McpDoorOptions): Mount[] {
  let handler: Promise<McpHandler> | undefined;
  const load = () => {
    handler ??= import("./mcp-handler.ts")
      .then(({ createMcpHttpHandler }) => createMcpHttpHandler(options))
      .catch((error: unknown) => {
        handler = undefined;
        throw error;
      });
    return handler;
  };
  const door = { ...options, peerOf: createConnectionPeer() };
  const handle = (request: Request, response: Response) => {
    const left = signalOfLeaving(response);
    const served = serve(door, load, request, response);
    served.catch((error: unknown) => refuseMcp(options, error, response, left));
  };
  return [
    { path: "/mcp", methods: ["POST", "DELETE"], handle },
    // The stream of a legacy client. Clients of opencode's API get the same path without asking for a stream.
    { path: "/mcp", methods: ["GET"], accept: "text/event-stream", handle },
    { path: "/mcp/", handle },
  ];
}

/** Serves one request. */
async function serve(
  options: McpDoorOptions & { peerOf: ConnectionPeer },
  load: () => Promise<McpHandler>,
  request: Request,
  response: Response,
): Promise<void> {
  const { isTls, publicUrl, peerOf } = options;
  response.setHeader("x-accel-buffering", "no");
  const { principal, signal } = enterDoor(options, request, response, "/mcp");
  checkRole(principal, rolesFor(ToolService.method.callTool), "/mcp");
  const pinned = principal.session ?? pinnedSession(request);
  const body = request.method === "POST" ? await readBody(request, bodyLimits(options)) : undefined;
  const exchange: McpExchange = {
    principal,
    peer: () => peerOf(request),
    pinned,
    mcpSessionId: headerOf(request, "mcp-session-id") ?? "",
    url: publicUrl ?? `${isTls ? "https" : "http"}://${headerOf(request, "host") ?? ""}`,
  };
  const { answerCall, serveExchange } = await load();
  const json = jsonIn(body);
  const answered = answerCall(exchange, { request, json, response, signal });
  if (answered !== undefined) return await answered;
  const web = webRequestOf(request, json === undefined ? body : undefined, signal);
  await sendWebResponse(await serveExchange(exchange, web, json), response);
}

/** Returns the session that the path or the header names. */
function pinnedSession(request: Request): string | undefined {
  const [path = ""] = (request.url ?? "").split("?", 1);
  const named = path.slice("/mcp/".length) || headerOf(request, "toolgate-session");
  if (named === null || /^ses[A-Za-z0-9_-]{1,61}$/.test(named)) return named ?? undefined;
  throw invalidField(
    "session_id",
    `${JSON.stringify(named)} is no session id; choose one that begins with "ses", such as /mcp/ses_shop`,
  );
}

/** Sends a refusal as JSON-RPC, with the HTTP status of its kind. A client that left gets none, which is no error. */
function refuseMcp({ failures, log }: McpDoorOptions, error: unknown, response: Response, left: AbortSignal): void {
  if (response.headersSent && !left.aborted) {
    log.error("a response broke off", { error, path: "/mcp" });
    response.destroy();
    return;
  }
  const failure = failures.failureOf(error, "/mcp", left);
  if (left.aborted) return;
  const status = httpStatusOf(failure);
  if (status === 401) response.setHeader("www-authenticate", "Bearer");
  const body = { jsonrpc: "2.0", id: null, error: { code: -32_000, message: failure.message } };
  sendWhole(response, status, "application/json", JSON.stringify(body));
}
