import { isAbsolute, resolve } from "node:path";
import { ErrorReason } from "../../../gen/opencode/tool/v1/error_reason_pb.ts";
import { ToolService } from "../../../gen/opencode/tool/v1/tool_service_pb.ts";
import type { StoreClock, StoreMembership } from "../../call/ports.ts";
import { mayUseWorkspace } from "../../call/sessions.ts";
import type { Logger } from "../../core/logger.ts";
import { pagesOf } from "../../core/pages-of.ts";
import type { Principal } from "../../core/principal.ts";
import { checkRole, rolesFor } from "../api/access.ts";
import { RequestFailure } from "../api/request-failure.ts";
import { type EntryOptions, enterDoor, headerOf, isJson } from "../http/enter-door.ts";
import {
  type ConnectionPeer,
  createConnectionPeer,
  type Mount,
  type Request,
  type Response,
  sendWhole,
} from "../http/handler.ts";
import type { ByteBudget } from "../http/socket-limits.ts";
import { createLocalApi, type LocalApiOptions } from "../mcp/local-api.ts";
import { httpStatusOf } from "../rpc/errors.ts";
import { bodyLimits, readBody } from "../rpc/request-body.ts";
import { sendEventStream } from "./event-stream.ts";
import {
  invalidRequest,
  messageRoutes,
  permissionRoutes,
  type RestCall,
  type RestDomain,
  type RestRoute,
  sessionRoutes,
} from "./routes.ts";
import { projectJson, restVersion } from "./shapes.ts";

/** Options of the door. */
export interface RestDoorOptions extends LocalApiOptions, EntryOptions {
  budget: ByteBudget;
  /** Domain of the routes; undefined: the door is closed. */
  rest: (RestDomain & { store: StoreClock & Pick<StoreMembership, "storeId"> }) | undefined;
  log: Logger;
}

type OpenDoor = RestDoorOptions & { rest: NonNullable<RestDoorOptions["rest"]> } & {
  apiOf: ReturnType<typeof createLocalApi>;
  peerOf: ConnectionPeer;
};

const streams = { "/event": "event", "/global/event": "global" } as const;
const isStream = (path: string): path is keyof typeof streams => Object.hasOwn(streams, path);

/** Opens the door for clients of opencode's HTTP API, if it is enabled. What it serves maps to the services' functions. */
export function restDoor(options: RestDoorOptions): Mount[] {
  const { rest, failures, log } = options;
  const routes = createRouteTable([
    ...sessionRoutes,
    ...messageRoutes,
    ...permissionRoutes,
    ...catalogRoutes,
    ...absentRoutes,
  ]);
  const places = [...routes.mounts(), ...Object.keys(streams).map((path) => ({ path, methods: ["GET"] }))];
  if (rest === undefined) return places.map((place) => ({ ...place, handle: refuseClosed }));
  const door = { ...options, rest, apiOf: createLocalApi(options), peerOf: createConnectionPeer() };
  const handle = (request: Request, response: Response) => {
    const [path = ""] = (request.url ?? "").split("?", 1);
    const matched = routes.match(request.method ?? "", path);
    const served =
      isStream(path) && request.method === "GET"
        ? serveStream(door, path, request, response)
        : serveRoute(door, matched, request, response);
    served
      .catch((error: unknown) => {
        if (response.headersSent) return;
        const failure = failures.failureOf(error, path);
        const { status, body } = failureJson(failure, path, matched?.parts.request ?? "");
        if (status === 401) response.setHeader("www-authenticate", "Bearer");
        sendWhole(response, status, "application/json", JSON.stringify(body));
      })
      .catch((error: unknown) => {
        log.error("a response broke off", { error, path });
        response.destroy();
      });
  };
  return places.map((place) => ({ ...place, takesBasic: true, handle }));
}

/** Refuses a request while the door is closed, with the setting that opens it. */
function refuseClosed({ method = "", url = "" }: Request, response: Response): void {
  const [path = ""] = url.split("?", 1);
  const message = `${method} ${path} is not served here: set enabled = true under [rest] in toolgate.toml for clients of opencode's HTTP API`;
  sendWhole(response, 404, "application/json", JSON.stringify({ name: "NotFoundError", data: { message } }));
}

/** Serves a stream of events. */
async function serveStream(
  door: OpenDoor,
  path: keyof typeof streams,
  request: Request,
  response: Response,
): Promise<void> {
  const { principal, query, signal } = enter(door, request, response);
  checkRole(principal, rolesFor(ToolService.method.watchMany), path);
  const workspace = workspaceOf(door, principal, request, query);
  const lastEventId = headerOf(request, "last-event-id") ?? undefined;
  const { feed, sources, store } = door.rest;
  await sendEventStream(
    { feed, sources, store },
    { principal, form: streams[path], workspace, lastEventId },
    response,
    signal,
  );
}

/** Serves a route: the token first, so that the body of a refused request is never read. */
async function serveRoute(
  door: OpenDoor,
  matched: MatchedRoute | undefined,
  request: Request,
  response: Response,
): Promise<void> {
  const { principal, query, signal } = enter(door, request, response);
  if (matched === undefined) throw unknownRoute(request);
  const workspace = workspaceOf(door, principal, request, query);
  const { route, parts } = matched;
  const body = route.method === "GET" ? undefined : await jsonOf(door, request);
  const { sources, sessions, feed } = door.rest;
  const api = door.apiOf({ principal, peer: () => door.peerOf(request) });
  const part = (name: string) => parts[name] ?? "";
  const answer = await route.run({ sources, sessions, feed, principal, api, part, query, body, workspace, signal });
  sendWhole(response, 200, "application/json", JSON.stringify(answer));
}

/** Checks what every request has to meet, and returns its sender. */
function enter(door: OpenDoor, request: Request, response: Response) {
  const query = new URL(request.url ?? "", "http://localhost").searchParams;
  const secret = ["token", "auth_token", "access_token", "password", "authorization"].find((name) => query.has(name));
  if (secret !== undefined)
    throw invalidRequest(secret, "addresses end in logs; send the token as the header authorization");
  const { principal, signal } = enterDoor(door, request, response, "opencode's API");
  return { principal, query, signal: AbortSignal.any([signal, door.shutdownSignal]) };
}

/** Returns the workspace root of the directory that the request names; undefined if it names none. */
function workspaceOf(
  { rest }: OpenDoor,
  principal: Principal,
  request: Request,
  query: URLSearchParams,
): string | undefined {
  const named = query.get("directory") ?? decoded(headerOf(request, "x-opencode-directory"));
  if (named === null || named === "") return undefined;
  if (!isAbsolute(named) || named.includes("\0")) throw invalidRequest("directory", "write an absolute path");
  return rest.sessions.workspaceAt(principal, resolve(named));
}

function decoded(header: string | null): string | null {
  try {
    return header === null ? null : decodeURIComponent(header);
  } catch {
    throw invalidRequest("x-opencode-directory", "write it percent-encoded");
  }
}

/** Reads a body as JSON. A form of another origin could send other types, and none without a body. */
async function jsonOf(door: OpenDoor, request: Request): Promise<unknown> {
  const hasType = isJson(request);
  if (!hasType && headerOf(request, "content-type"))
    throw invalidRequest("content-type", "it must be application/json");
  const body = await readBody(request, bodyLimits(door));
  if (body.length === 0) return undefined;
  if (!hasType) throw invalidRequest("content-type", "it is missing; it must be application/json");
  try {
    return JSON.parse(body.toString());
  } catch {
    throw invalidRequest("", "it is no JSON");
  }
}

function unknownRoute({ method, url = "" }: Request): Error {
  const [path] = url.split("?", 1);
  const message = `${method} ${path} is not served here; docs/clients/opencode.md lists what is`;
  return new RequestFailure("not_found", message, { reason: ErrorReason.NOT_SERVED });
}

const media = { text: true, audio: false, image: false, video: false, pdf: false };

/** A model that names itself: without any, opencode's terminal client asks for a provider before it shows anything else. */
const model = {
  ...{ id: "none", providerID: "toolgate", name: "no model: answers permission requests only" },
  api: { id: "none", url: "", npm: "" },
  capabilities: {
    ...{ temperature: false, reasoning: false, attachment: false, toolcall: false, interleaved: false },
    input: media,
    output: media,
  },
  cost: { input: 0, output: 0, cache: { read: 0, write: 0 } },
  limit: { context: 0, output: 0 },
  ...{ status: "active", options: {}, headers: {}, release_date: "" },
};
const provider = { id: "toolgate", name: "Toolgate", source: "custom", env: [], options: {}, models: { none: model } };
const selected = { toolgate: "none" };

/** Answers about parts of opencode that Toolgate does not have. Its terminal client does not start without them. */
const answers: Readonly<Record<string, unknown>> = {
  "/config": {},
  "/config/providers": { providers: [provider], default: selected },
  "/provider": { all: [provider], default: selected, connected: [provider.id] },
  "/provider/auth": {},
  "/command": [],
  "/lsp": [],
  "/formatter": [],
  "/mcp": {},
  "/vcs": {},
  "/experimental/resource": {},
  "/experimental/workspace": [],
  "/session/:id/todo": [],
  "/session/:id/diff": [],
};

/** Routes of parts that Toolgate does not have. */
const absentRoutes: readonly RestRoute[] = Object.entries(answers).map(([path, answer]) => ({
  method: "GET",
  path,
  run: () => answer,
}));

/** Reasons for which a request cannot be answered any more: opencode knows them as one. */
const goneRequests: ReadonlySet<ErrorReason> = new Set([
  ErrorReason.NO_SUCH_PERMISSION,
  ErrorReason.ALREADY_ANSWERED,
  ErrorReason.ASK_CLOSED,
]);

/** Returns a failure in opencode's form; `request` is the permission request that the path names. */
function failureJson(failure: RequestFailure, path: string, request: string): { status: number; body: object } {
  const { reason, message, metadata } = failure;
  const data = { message };
  if (goneRequests.has(reason)) return { status: 404, body: goneRequest(failure, path, request) };
  const status = httpStatusOf(failure);
  switch (failure.status) {
    case "not_found":
      return { status: 404, body: { name: "NotFoundError", data } };
    case "unauthenticated":
      return { status: 401, body: { _tag: "UnauthorizedError", message } };
    case "permission_denied":
      return { status: 403, body: { name: "Forbidden", data } };
    case "invalid_argument":
    case "failed_precondition": {
      if (reason === ErrorReason.NOT_SERVED) return { status: 400, body: { name: "BadRequest", data } };
      const field = metadata.field && { field: metadata.field };
      return { status: 400, body: { _tag: "InvalidRequestError", message, ...field } };
    }
    default:
      return { status, body: { name: "UnknownError", data } };
  }
}

function goneRequest({ reason, message }: RequestFailure, path: string, requestID: string): object {
  const kind = path.startsWith("/question/") ? "Question" : "Permission";
  const unknown = `${kind} request not found: ${requestID}`;
  return {
    _tag: `${kind}NotFoundError`,
    requestID,
    message: reason === ErrorReason.NO_SUCH_PERMISSION ? unknown : message,
  };
}

/** A route, and the named parts of the path that matched it. */
interface MatchedRoute {
  route: RestRoute;
  parts: Readonly<Record<string, string>>;
}

/** Routes by path. */
interface RouteTable {
  match(method: string, path: string): MatchedRoute | undefined;
  /** Returns the places on the listener: whole paths with their methods, and prefixes of paths with parts. */
  mounts(): Pick<Mount, "path" | "methods">[];
}

/** Creates the table; of two routes that match, the earlier one is taken. */
function createRouteTable(routes: readonly RestRoute[]): RouteTable {
  const split = routes.map((route) => ({ route, wanted: route.path.split("/") }));
  return {
    match(method, path) {
      const given = path.split("/");
      for (const { route, wanted } of split) {
        if (route.method !== method || wanted.length !== given.length) continue;
        const parts = partsOf(wanted, given);
        if (parts !== undefined) return { route, parts };
      }
      return undefined;
    },
    mounts() {
      const [whole, withParts] = [new Map<string, string[]>(), new Set<string>()];
      for (const { method, path } of routes) {
        const [start = ""] = path.split(":", 1);
        if (start === path) whole.set(path, [...(whole.get(path) ?? []), method]);
        else withParts.add(start);
      }
      return [...[...whole].map(([path, methods]) => ({ path, methods })), ...[...withParts].map((path) => ({ path }))];
    },
  };
}

/** Returns the named parts of a path; undefined if the path is another one. An id is printable without escapes. */
function partsOf(wanted: readonly string[], given: readonly string[]): Record<string, string> | undefined {
  const parts: Record<string, string> = {};
  for (const [index, name] of wanted.entries()) {
    const value = given[index] ?? "";
    if (name.startsWith(":") && /^[A-Za-z0-9_.-]{1,128}$/.test(value)) parts[name.slice(1)] = value;
    else if (name !== value) return undefined;
  }
  return parts;
}

/** Routes that describe the service: its places, agents and tools. */
const catalogRoutes: readonly RestRoute[] = [
  { method: "GET", path: "/global/health", run: () => ({ healthy: true, version: restVersion }) },
  { method: "GET", path: "/path", run: describePaths },
  { method: "GET", path: "/agent", run: listAgents },
  { method: "GET", path: "/project", run: (call) => placesOf(call).map((place) => projectJson(...place)) },
  { method: "GET", path: "/project/current", run: (call) => projectJson(...currentPlace(call)) },
  {
    method: "GET",
    path: "/experimental/tool/ids",
    run: async (call) => (await toolsOf(call, "", "")).map(({ name }) => name),
  },
  { method: "GET", path: "/experimental/tool", run: listTools },
];

/** Returns the paths; those of the service's own files stay unnamed. */
function describePaths(call: RestCall) {
  const [, directory] = currentPlace(call);
  return { home: "", state: "", config: "", worktree: directory, directory };
}

async function listAgents({ api, signal }: RestCall) {
  const { agentDetails } = await api.tools.getServerInfo({}, { signal });
  return agentDetails.map(({ agent: name, description }) => ({
    ...{ name, description, mode: "all", native: true, permission: [], options: {} },
  }));
}

async function listTools(call: RestCall) {
  const [provider, model] = ["provider", "model"].map((name) => call.query.get(name) ?? "");
  if (!provider || !model) throw invalidRequest(provider ? "model" : "provider", "it is missing; name both");
  const tools = await toolsOf(call, provider, model);
  return tools.map(({ name, description, inputSchema }) => ({ id: name, description, parameters: inputSchema ?? {} }));
}

async function toolsOf({ api, signal }: RestCall, providerId: string, modelId: string) {
  const pages = pagesOf((page) => api.tools.listTools({ ...page, providerId, modelId }, { signal }));
  return (await Array.fromAsync(pages)).flatMap(({ tools }) => tools);
}

/** Returns the workspace root of the request's directory, otherwise `default` or the first one that the token may use. */
function currentPlace(call: RestCall): readonly [name: string, directory: string] {
  const places = placesOf(call);
  const wanted = call.workspace ?? "default";
  return places.find(([name]) => name === wanted) ?? places[0] ?? ["", ""];
}

function placesOf({ sources, principal }: RestCall) {
  return [...sources.roots].filter(([name]) => mayUseWorkspace(principal, name));
}
