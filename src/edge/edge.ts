import { randomUUID } from "node:crypto";
import { constants, type Http2Session, type ServerHttp2Stream } from "node:http2";
import type { DescService } from "@bufbuild/protobuf";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import { ToolService } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import type { EncodedMessages, StoreMembership } from "../call/ports.ts";
import type { Config } from "../config/config.ts";
import type { Logger } from "../core/logger.ts";
import { RequestError } from "../core/request-error.ts";
import type { CertificateCallers } from "../people/client-certificates.ts";
import type { Credentials } from "../people/credentials.ts";
import type { JwtCallers } from "../people/jwt.ts";
import type { RunTokens } from "../people/known-credentials.ts";
import { type Authenticate, createAccessGate, createAuthenticate } from "./api/access.ts";
import { createBrowserSignIn } from "./api/browser-sign-in.ts";
import { createFailures, type Failures } from "./api/failures.ts";
import { overloaded } from "./api/request-failure.ts";
import { createEdgeLimits, nameOfRpc } from "./api/rpc.ts";
import { contract, type Services } from "./api/services.ts";
import { hookDoor } from "./hooks/claude-door.ts";
import { type ConnectionCaps, createConnectionCaps, withinDescriptors } from "./http/connection-caps.ts";
import { consoleDoor } from "./http/console-files.ts";
import { createHttpGuard } from "./http/guard.ts";
import {
  covers,
  createClientCertificates,
  dispatch,
  type Handler,
  isBroken,
  type Mount,
  type Refuse,
  type Request,
} from "./http/handler.ts";
import { createListener, type Listener } from "./http/listener.ts";
import { createReadiness, healthDoor, metricsDoor, type Readiness } from "./http/probes.ts";
import { type SignInDoorOptions, signInDoor } from "./http/sign-in.ts";
import {
  type BudgetShare,
  type ByteBudget,
  type ConnectionTimes,
  createBudgetShares,
  createByteBudget,
  resetLimits,
} from "./http/socket-limits.ts";
import { type McpDoorOptions, mcpDoor } from "./mcp/mcp-door.ts";
import { createMcpMetrics } from "./mcp/mcp-metrics.ts";
import { type RestDoorOptions, restDoor } from "./rest/rest-door.ts";
import { connectFailure, createRefuse } from "./rpc/errors.ts";
import { type RpcDoorOptions, rpcDoor } from "./rpc/rpc-door.ts";

/** Options of the edge. */
export interface EdgeOptions {
  config: Pick<
    Config,
    | "listen"
    | "healthListen"
    | "tls"
    | "hosts"
    | "origins"
    | "publicUrl"
    | "trustedProxies"
    | "tokens"
    | "insecureNoAuth"
    | "limits"
  >;
  /** Creates the services that the doors call. */
  services: (failures: Failures, shareOf: (principalId: string) => BudgetShare) => Services;
  credentials: Credentials;
  /** Sign-ins at identity providers. */
  signIns: SignInDoorOptions["signIns"];
  /** Verifies tokens of issuers before a request with one is served. */
  jwt?: Pick<JwtCallers, "admit">;
  /** Programs that have a client certificate in place of a token. */
  certificates?: Pick<CertificateCallers, "tokenOf">;
  /** Domain of the door for clients of opencode; undefined: it is closed. */
  rest?: RestDoorOptions["rest"];
  /** Tokens of agents that this service started, which only the MCP door takes. */
  runTokens?: Pick<RunTokens, "principalOf">;
  /** Identifies the contents of the store. */
  storeId: () => string;
  /** Binary forms that the store has in memory. */
  encoded: EncodedMessages;
  /** Returns whether the store answers. */
  ready: () => Promise<boolean>;
  /** Returns whether the replicas that share the store have the same policy. */
  agrees: () => boolean;
  /** Returns how what the store acknowledges survives the loss of one of its servers. */
  safety: StoreMembership["safety"];
  /** Returns the metrics in the text format of Prometheus. */
  metrics: () => string | Promise<string>;
  /** Directory of the built console; it may be absent. */
  consoleDirectory: string;
  log: Logger;
  /** Time that a client has to send the headers of a request. */
  headersMs?: number;
  /** Time that a connection may have no request. */
  idleMs?: number;
  /** Time that a connection of HTTP/2 may have no traffic. */
  http2IdleMs?: number;
}

/** Starts the edge: all doors on one port, behind one guard, and health on a second one if the configuration has its address. */
export async function startEdge(options: EdgeOptions): Promise<Listener> {
  // Idle connections stay longer than the usual 60 s of proxies: a request on one that the server closes meanwhile is lost.
  const { config, log, headersMs = 15_000, idleMs = 75_000, http2IdleMs = 120_000 } = options;
  const [drain, shutdown] = [new AbortController(), new AbortController()];
  const failures = createFailures({ log, newId: randomUUID, fromLibrary: connectFailure });
  const browser = createBrowserSignIn(options.storeId);
  const { credentials, runTokens } = options;
  const authenticate = createAuthenticate({ config, credentials, browser });
  const principalOf: Credentials["principalOf"] = (sha256) =>
    runTokens?.principalOf(sha256) ?? credentials.principalOf(sha256);
  const authenticateMcp = createAuthenticate({ config, credentials: { principalOf }, browser });
  const refuse = createRefuse(failures);
  const { bufferedBytes, requestBytes } = config.limits;
  const budget = createByteBudget(bufferedBytes);
  // The largest input fits, however small the budget is.
  const shareOf = createBudgetShares(budget, Math.max(bufferedBytes / 4, requestBytes));
  const limits = withinDescriptors(config.limits);
  if (limits.connections < config.limits.connections)
    log.warn("the limit of open files is low, so fewer connections are accepted; raise it (LimitNOFILE, ulimit -n)", {
      count: limits.connections,
    });
  const newCaps = () => createConnectionCaps({ ...config, limits, onRefused: logSometimes(log) });
  const caps = newCaps();
  const mcpMetrics = createMcpMetrics();
  const readiness = createReadiness(options, drain.signal);
  const mounts = openDoors({
    ...options,
    services: options.services(failures, shareOf),
    rest: options.rest,
    gate: createAccessGate(authenticate),
    authenticate,
    authenticateMcp,
    browser,
    refuse,
    budget,
    metrics: async () => (await options.metrics()) + edgeMetrics({ budget, caps }) + mcpMetrics.text(),
    mcpMetrics,
    failures,
    readiness,
    limits: createEdgeLimits(config.limits),
    shutdownSignal: shutdown.signal,
    origins: config.origins,
    isTls: config.tls !== undefined,
    publicUrl: config.publicUrl,
  });
  const hasToken = createTokenCheck(authenticateMcp);
  const { requestsWithoutToken } = config.limits;
  const withoutToken = {
    ...{ maxCount: requestsWithoutToken, counts: (request: Request) => !hasToken(request), refuse },
    refusal: () =>
      overloaded("requests_without_token", `this connection has ${requestsWithoutToken} open requests without a token`),
  };
  const waiting = {
    ...{ maxCount: maxWaitingRpcs, counts: ({ url }: Request) => isWaitingRpc(url), refuse },
    refusal: () =>
      overloaded("streams", `this connection has ${maxWaitingRpcs} open streams and calls; open another connection`),
  };
  const served = capOpenRequests(withoutToken, capOpenRequests(waiting, dispatch(mounts, refuse)));
  const guarded = capResets(hasToken, createHttpGuard(config, refuse, served));
  const handler = withBasic(mounts, afterAdmission(options.jwt, withCertificate(options.certificates, guarded)));
  const { bodyMs } = config.limits;
  const onDrain = () => drain.abort();
  const onClose = () => shutdown.abort(draining());
  const times = { headersMs, bodyMs, idleMs, http2IdleMs };
  const health = await startHealth(options, { readiness, refuse, times, caps: newCaps() });
  try {
    const listener = await createListener({ config, caps, handler, onDrain, onClose, log, ...times });
    return { ...listener, close: (cutMs) => listener.close(cutMs).finally(() => health?.close(cutMs)) };
  } catch (error) {
    await health?.close(0);
    throw error;
  }
}

/** Makes the password of HTTP basic the token of a request to a door that takes it, before anything reads the token. */
function withBasic(mounts: readonly Mount[], handler: Handler): Handler {
  const places = mounts.filter(({ takesBasic }) => takesBasic);
  return (request, response) => {
    const { headers } = request;
    const [, basic] = /^Basic +([A-Za-z0-9+/=]+)$/i.exec(headers.authorization ?? "") ?? [];
    if (basic !== undefined && places.some((place) => covers(place, request))) {
      const [, password] = /^[^:]*:(.*)$/s.exec(Buffer.from(basic, "base64").toString()) ?? [];
      if (password !== undefined) headers.authorization = `Bearer ${password}`;
    }
    handler(request, response);
  };
}

/** Serves a request once its token of an issuer was verified. A known token, or none, is served in the same turn. */
function afterAdmission(jwt: EdgeOptions["jwt"], handler: Handler): Handler {
  if (jwt === undefined) return handler;
  return (request, response) => {
    const [, token = ""] = /^Bearer +(ey[^ ]+)$/i.exec(request.headers.authorization ?? "") ?? [];
    const verified = token === "" ? undefined : jwt.admit(token);
    if (verified === undefined) return handler(request, response);
    void verified.then(() => {
      if (!isBroken(response)) handler(request, response);
    });
  };
}

/**
 * Gives a request without a token the one of its connection's certificate. A browser sends a certificate for whatever page makes the
 * request, so it counts for programs only.
 */
function withCertificate(certificates: EdgeOptions["certificates"], handler: Handler): Handler {
  if (certificates === undefined) return handler;
  const certificateOf = createClientCertificates();
  return (request, response) => {
    const { headers } = request;
    const isByProgram = ["authorization", "cookie", "origin", "sec-fetch-site"].every((name) => !(name in headers));
    const certificate = isByProgram ? certificateOf(request) : undefined;
    const token = certificate && certificates.tokenOf(certificate);
    if (token !== undefined) headers.authorization = `Bearer ${token}`;
    handler(request, response);
  };
}

/** Serves health at its own address, for probes that have no client certificate; it answers until the service has closed. */
async function startHealth(
  { config: { healthListen: listen }, log }: EdgeOptions,
  {
    readiness,
    refuse,
    ...served
  }: { readiness: Readiness; refuse: Refuse; times: ConnectionTimes; caps: ConnectionCaps },
): Promise<Listener | undefined> {
  if (listen === undefined) return undefined;
  const handler = dispatch(healthDoor({ readiness }), refuse);
  const [onDrain, onClose] = [() => undefined, () => undefined];
  const listener = await createListener({
    ...{ config: { listen, tls: undefined }, caps: served.caps, handler, onDrain, onClose, log, ...served.times },
  });
  log.info("health is served at its own address", { address: listener.url });
  return listener;
}

/** Creates the check whether a request has a valid token; without authentication every request counts as having one. */
function createTokenCheck(authenticate: Authenticate): (request: Request) => boolean {
  const checked = new WeakMap<Request, boolean>();

  function check({ headers }: Request): boolean {
    try {
      authenticate({
        get(name) {
          const value = headers[name];
          return value === undefined ? null : String(value);
        },
      });
      return true;
    } catch {
      return false;
    }
  }

  return (request) => {
    const isValid = checked.get(request) ?? check(request);
    checked.set(request, isValid);
    return isValid;
  };
}

/** Logs a refused connection, at most one a minute: a flood of connections must not fill the log. */
function logSometimes(log: Logger): (refusal: { address: string; limit: string; refusedCount: number }) => void {
  let silentUntil = 0;
  return ({ address, limit, refusedCount }) => {
    if (performance.now() < silentUntil) return;
    silentUntil = performance.now() + 60_000;
    const cure = "raise the limit in [limits], or name the proxy in trusted_proxies";
    log.warn(`a connection was refused, since ${limit} is reached; ${cure}`, { address, count: refusedCount });
  };
}

function draining(): RequestError {
  return new RequestError(
    ErrorReason.DRAINING,
    "this replica is going away; open the stream again after the last number seen",
  );
}

/** Returns the metrics of the edge in the text format of Prometheus. */
function edgeMetrics({ budget, caps }: { budget: ByteBudget; caps: ConnectionCaps }): string {
  return [
    metric("toolgate_connections", "gauge", "Connections that are open.", caps.openCount),
    metric("toolgate_connections_refused_total", "counter", "Connections over a cap.", caps.refusedCount),
    metric("toolgate_buffered_bytes", "gauge", "Bytes of requests that have not arrived whole.", budget.usedBytes),
  ].join("");
}

function metric(name: string, type: "gauge" | "counter", help: string, value: number): string {
  return `# HELP ${name} ${help}\n# TYPE ${name} ${type}\n${name} ${value}\n`;
}

const { callTool, beginCall } = ToolService.method;

const names = new Set(
  Object.values<DescService>(contract)
    .flatMap(({ methods }) => methods)
    .filter((method) => method.methodKind !== "unary")
    .concat(callTool, beginCall)
    .map((method) => `/${nameOfRpc(method)}`),
);

/** Returns true for the path of an rpc that stays open while something else happens: a stream, or a call that runs or waits. */
const isWaitingRpc = (path: string | undefined): boolean => names.has(path ?? "");

/**
 * Waiting rpcs that a connection may have open. The limit of its streams is higher, so that a client whose streams all wait can
 * still cancel and answer on the same connection.
 */
const maxWaitingRpcs = 1_000;

/**
 * Creates a cap on the open requests of one kind: it refuses one more of a connection. A request is open until its response is
 * closed, which for HTTP/2 is the life of its stream.
 */
function capOpenRequests(
  {
    maxCount,
    counts,
    refusal,
    refuse,
  }: { maxCount: number; counts: (request: Request) => boolean; refusal: () => unknown; refuse: Refuse },
  next: Handler,
): Handler {
  const openCounts = new WeakMap<object, number>();
  return (request, response) => {
    if (!counts(request)) return next(request, response);
    const connection = ("stream" in request ? request.stream.session : undefined) ?? request.socket;
    const openCount = openCounts.get(connection) ?? 0;
    if (openCount >= maxCount) return refuse(refusal(), request, response);
    openCounts.set(connection, openCount + 1);
    response.once("close", () => openCounts.set(connection, (openCounts.get(connection) ?? 1) - 1));
    next(request, response);
  };
}

/** Resets of an HTTP/2 connection. */
interface Resets {
  /** True once a request on the connection had a valid token. */
  hasToken: boolean;
  /** Resets that are still allowed, at a time. */
  left: number;
  at: number;
}

/**
 * Creates a cap on the streams of a connection that its client resets. A connection without a valid token is cut. Otherwise the
 * client is asked to open another one, by GOAWAY without an error, and the requests that are open go on. A stream that was reset
 * before its turn is not served.
 */
function capResets(hasToken: (request: Request) => boolean, next: Handler): Handler {
  const bySession = new WeakMap<Http2Session, Resets>();
  const limitOf = (resets: Resets) => (resets.hasToken ? resetLimits.withToken : resetLimits.withoutToken);

  function count(session: Http2Session, resets: Resets, { rstCode, aborted }: ServerHttp2Stream): void {
    // A client may reset without an error, too, which shows in a response that is not whole.
    if ((rstCode === constants.NGHTTP2_NO_ERROR && !aborted) || session.destroyed) return;
    const { burst, perSecond } = limitOf(resets);
    const now = performance.now();
    const regained = ((now - resets.at) / 1_000) * perSecond;
    Object.assign(resets, { left: Math.min(burst, resets.left + regained) - 1, at: now });
    if (resets.left >= 0) return;
    if (resets.hasToken) session.close();
    else session.destroy();
  }

  return (request, response) => {
    const stream = "stream" in request ? request.stream : undefined;
    const session = stream?.session;
    if (stream === undefined || session === undefined) return next(request, response);
    const resets = bySession.get(session) ?? { hasToken: false, left: resetLimits.withoutToken.burst, at: 0 };
    bySession.set(session, resets);
    if (stream.closed) return count(session, resets, stream);
    if (!resets.hasToken && hasToken(request))
      Object.assign(resets, { hasToken: true, left: resetLimits.withToken.burst });
    stream.once("close", () => count(session, resets, stream));
    next(request, response);
  };
}

/** Options of all doors. */
interface DoorOptions extends RpcDoorOptions, McpDoorOptions, RestDoorOptions, Omit<SignInDoorOptions, "limits"> {
  authenticate: Authenticate;
  /** Takes the tokens of agents' runs as well. */
  authenticateMcp: Authenticate;
  refuse: Refuse;
  /** Returns the metrics in the text format of Prometheus. */
  metrics: () => string | Promise<string>;
  /** Directory of the built console; it may be absent. */
  consoleDirectory: string;
}

/**
 * Lists the doors of the edge. A door is its mounts on the listener and an adapter that turns a request into a message and an
 * EdgeContext for the services in api/. A new door is a function like these and a line here.
 */
function openDoors(options: DoorOptions): Mount[] {
  return [
    ...rpcDoor(options),
    ...mcpDoor({ ...options, authenticate: options.authenticateMcp }),
    ...hookDoor(options),
    ...restDoor(options),
    ...healthDoor(options),
    ...metricsDoor(options),
    ...signInDoor(options),
    ...consoleDoor(options.consoleDirectory),
  ];
}
