import type { DescMethod, Message } from "@bufbuild/protobuf";
import {
  Code,
  ConnectError,
  createConnectRouter,
  createContextKey,
  createContextValues,
  type HandlerContext,
  type Interceptor,
} from "@connectrpc/connect";
import {
  type Compression,
  compressedFlag,
  type UniversalHandler,
  type UniversalServerResponse,
} from "@connectrpc/connect/protocol";
import { parseTimeout as parseConnectTimeout } from "@connectrpc/connect/protocol-connect";
import { parseTimeout as parseGrpcTimeout } from "@connectrpc/connect/protocol-grpc";
import { universalRequestFromNodeRequest, universalResponseToNodeResponse } from "@connectrpc/connect-node";
import { peerOf } from "../../core/peer-uid.ts";
import type { Principal } from "../../core/principal.ts";
import { type AccessGate, publicPrincipal } from "../api/access.ts";
import type { Failures } from "../api/failures.ts";
import {
  clientLeft,
  notOneMessage,
  notServed,
  RequestFailure,
  requestTooLarge,
  unreadableRequest,
} from "../api/request-failure.ts";
import {
  type CheckMessage,
  createEdgeContext,
  type EdgeContext,
  type EdgeLimits,
  nameOfRpc,
  type Rpc,
} from "../api/rpc.ts";
import { createConnectionPeer, type Handler, type Request, type Response } from "../http/handler.ts";
import { sendRefusal, toConnectError } from "./errors.ts";
import { type BodyLimits, readBody, streamBody } from "./request-body.ts";
import {
  announcedBytes,
  envelopeBytes,
  type JsonOptions,
  parseMessage,
  type RpcOptions,
  singleMessage,
} from "./wire.ts";

/** Creates a handler for all forms that Connect's router serves: Connect, gRPC and gRPC-Web. */
export function createConnectHandler(options: RpcOptions): Handler {
  const { rpcs, failures, limits, log } = options;
  const connectionPeer = createConnectionPeer();
  const [open, gated] = [rpcs.filter(({ isPublic }) => isPublic), rpcs.filter(({ isPublic }) => !isPublic)];
  const handlers = new Map(
    [
      ...createRoutes(options, { rpcs: open, admit: () => publicPrincipal, readMaxBytes: limits.publicRequestBytes }),
      ...createRoutes(options, { rpcs: gated, admit: options.gate, readMaxBytes: limits.requestBytes }),
    ].map((route) => [route.handler.requestPath, route] as const),
  );

  return (request, response) => {
    const route = handlers.get((request.url ?? "").split("?", 1)[0] ?? "");
    if (route === undefined) return sendNotServed(request, response, failures);
    const { handler } = route;
    let hasLeft = false;
    response.once("close", () => {
      hasLeft = true;
    });
    const body = reportErrors(checkedBody(request, route), (error) =>
      toConnectError(failures.failureOf(error, nameOfRpc(handler.method))),
    );
    const values = createContextValues().set(peerKey, () => connectionPeer(request));
    handler({ ...universalRequestFromNodeRequest(request, response, undefined, values), body })
      .then((answer) => {
        const fact = refusedForms.get(answer.status);
        if (fact === undefined) return universalResponseToNodeResponse(endWithClient(answer, response), response);
        const failure = failures.failureOf(notServed("unknown", fact), nameOfRpc(handler.method));
        sendRefusal({ request, response }, failure, answer.status);
      })
      .catch((error: unknown) => {
        if (hasLeft || ConnectError.from(error).code === Code.Aborted) return;
        log.error("a response broke off", { error, rpc: nameOfRpc(handler.method) });
        response.destroy();
      });
  };
}

/**
 * Returns an answer whose stream ends when its client leaves. Connect waits for ever for a client that leaves while it does not
 * read, and the stream would hold what it has reserved.
 */
function endWithClient(answer: UniversalServerResponse, response: Response): UniversalServerResponse {
  const messages = answer.body?.[Symbol.asyncIterator]();
  if (messages === undefined) return answer;
  response.once("close", () => {
    if (!response.writableEnded) messages.throw?.(toConnectError(clientLeft())).catch(() => undefined);
  });
  return { ...answer, body: { [Symbol.asyncIterator]: () => messages } };
}

/** Refuses a path below a service that names none of its rpcs. */
function sendNotServed(request: Request, response: Response, { failureOf }: Failures): void {
  const name = (request.url ?? "").slice(1);
  const failure = failureOf(notServed("unimplemented", `${name} is not an rpc of this server`), name);
  sendRefusal({ request, response }, failure, 404);
}

/** Explains the HTTP statuses with which Connect refuses a request that has no form of the rpc; it sends no body with them. */
const refusedForms: ReadonlyMap<number, string> = new Map([
  [405, "an rpc is called by POST"],
  [415, "the rpc is not served by this content type; use application/json, or the one of gRPC, gRPC-Web or Connect"],
  [505, "the rpc streams in both directions and needs HTTP/2; this request came over HTTP/1.1"],
]);

/** A handler of Connect's router and how the bodies of its requests are read. */
interface Route extends RoutedRpc {
  handler: UniversalHandler;
}

/** Creates the routes of rpcs that share an access. */
function createRoutes(
  options: RpcOptions,
  { rpcs, admit, readMaxBytes }: { rpcs: readonly Rpc[]; admit: AccessGate; readMaxBytes: number },
): Route[] {
  const { checkMessage, limits, compression, jsonOptions, budget, shutdownSignal } = options;
  const failures = refuseLarge(options.failures, readMaxBytes);
  const available = compression.acceptCompression.map((one) =>
    reportUnreadable(one, (error) => toConnectError(failures.failureOf(error, "decompress"))),
  );
  const router = createConnectRouter({
    acceptCompression: available,
    compressMinBytes: compression.compressMinBytes,
    jsonOptions,
    readMaxBytes,
    maxTimeoutMs: limits.maxDeadlineMs,
    shutdownSignal,
    interceptors: [reportFailures(failures), checkRequests(checkMessage)],
    requestGate({ method, requestHeader, signal, values }) {
      try {
        values.set(principalKey, admit({ rpc: method, headers: requestHeader, signal }));
        checkCompression(requestHeader, available);
        checkTimeout(requestHeader, limits);
      } catch (error) {
        throw toConnectError(failures.failureOf(error, nameOfRpc(method), signal));
      }
    },
  });
  const isPublic = new Map(rpcs.map((rpc) => [rpc.method, rpc.isPublic]));
  for (const rpc of rpcs) routeRpc(router, rpc, limits);
  return router.handlers.map((handler) => {
    const { method } = handler;
    const isLong = isPublic.get(method) === false && !isSingleRequest(method);
    const maxBytes = isLong ? Number.POSITIVE_INFINITY : readMaxBytes + (isSingleRequest(method) ? 0 : envelopeBytes);
    const maxMs = isLong ? limits.maxDeadlineMs : limits.bodyMs;
    return { handler, method, limits: { maxBytes, maxMs, budget }, compressions: available, jsonOptions };
  });
}

const principalKey = createContextKey<Principal | undefined>(undefined, { description: "principal" });

const peerKey = createContextKey<EdgeContext["peer"]>(() => peerOf({}), { description: "other end of the connection" });

async function* reportErrors(
  body: AsyncIterable<Uint8Array>,
  report: (error: unknown) => ConnectError,
): AsyncGenerator<Uint8Array> {
  try {
    yield* body;
  } catch (error) {
    throw error instanceof RequestFailure ? report(error) : error;
  }
}

function routeRpc(router: ReturnType<typeof createConnectRouter>, { method, run }: Rpc, limits: EdgeLimits): void {
  const serve = (request: never, handler: HandlerContext) => {
    const context = edgeContextOf(handler, limits);
    // The credential may have ended since the headers came.
    context.signal.throwIfAborted();
    return run(request, context);
  };
  // Connect has no type for the function of a method that is not known when the code is compiled.
  router.rpc(method, serve as never);
}

function edgeContextOf(handler: HandlerContext, limits: EdgeLimits): EdgeContext {
  const { requestHeader: headers, values } = handler;
  const principal = values.get(principalKey);
  if (principal === undefined) throw new Error("a request bypassed the access gate");
  const signal = linkedSignal(handler.signal, principal.ended);
  const response = { headers: handler.responseHeader, trailers: handler.responseTrailer };
  const peer = values.get(peerKey);
  return createEdgeContext({ principal, signal, timeoutMs: handler.timeoutMs(), headers, response, limits, peer });
}

/** Maps what an rpc throws, also in the middle of a response stream. It goes before all other interceptors. */
function reportFailures({ failureOf }: Failures): Interceptor {
  return (next) => async (request) => {
    const report = (error: unknown) => toConnectError(failureOf(error, nameOfRpc(request.method), request.signal));
    try {
      const response = await next(request);
      if (!response.stream) return response;
      // An error of a stream is thrown after next() has returned.
      return { ...response, message: reportingStream(response.message, report) };
    } catch (error) {
      throw report(error);
    }
  };
}

async function* reportingStream<T>(messages: AsyncIterable<T>, report: (error: unknown) => ConnectError) {
  try {
    yield* messages;
  } catch (error) {
    throw report(error);
  }
}

/** Refuses request messages that cannot be read or break a rule of the contract. */
function checkRequests(checkMessage: CheckMessage): Interceptor {
  return (next) => async (request) => {
    if (request.stream) return await next({ ...request, message: readableStream(request, checkMessage) });
    checkMessage(request.method.input, request.message);
    return await next(request);
  };
}

/** Passes request messages on. Connect reports bytes that are not a message as an internal error; they are the client's. */
async function* readableStream(
  { message: messages, method }: { message: AsyncIterable<Message>; method: DescMethod },
  checkMessage: CheckMessage,
) {
  try {
    for await (const message of messages) yield checkMessage(method.input, message);
  } catch (error) {
    const isUnreadable =
      error instanceof ConnectError && error.code === Code.Internal && !(error.cause instanceof RequestFailure);
    throw isUnreadable ? unreadableRequest(error.rawMessage) : error;
  }
}

/**
 * Returns a signal that is aborted with the first of both, for the reason of that one. `AbortSignal.any` would hold memory for
 * each request as long as `ended` lives, which is the lifetime of a credential; here the request's own signal, which Connect
 * aborts after each request, ends the link.
 */
export function linkedSignal(request: AbortSignal, ended: AbortSignal | undefined): AbortSignal {
  if (ended === undefined) return request;
  const either = new AbortController();
  const end = () => either.abort(ended.reason);
  const unlink = () => {
    ended.removeEventListener("abort", end);
    either.abort(request.reason);
  };
  if (ended.aborted) end();
  else if (request.aborted) either.abort(request.reason);
  else {
    ended.addEventListener("abort", end);
    request.addEventListener("abort", unlink, { once: true });
  }
  return either.signal;
}

/** Returns failures with REQUEST_TOO_LARGE for what Connect refuses as too large without a reason. */
function refuseLarge(failures: Failures, maxBytes: number): Failures {
  const isLarge = (error: unknown) =>
    error instanceof ConnectError && error.code === Code.ResourceExhausted && !(error.cause instanceof RequestFailure);
  return {
    failureOf: (error, ...request) =>
      failures.failureOf(isLarge(error) ? requestTooLarge(maxBytes) : error, ...request),
  };
}

/** Returns a compression that reports bytes which are not compressed by it as the client's error. */
function reportUnreadable(compression: Compression, report: (error: unknown) => ConnectError): Compression {
  return {
    ...compression,
    async decompress(bytes, readMaxBytes) {
      try {
        return await compression.decompress(bytes, readMaxBytes);
      } catch (error) {
        const isInternal = error instanceof ConnectError && error.code === Code.Internal;
        throw report(isInternal ? unreadableRequest(error.rawMessage) : error);
      }
    },
  };
}

/** Refuses a deadline that cannot be read or is too far away. */
function checkTimeout(headers: Headers, { maxDeadlineMs }: EdgeLimits): void {
  const isGrpc = headers.get("content-type")?.startsWith("application/grpc") === true;
  const { error } = isGrpc
    ? parseGrpcTimeout(headers.get("grpc-timeout"), maxDeadlineMs)
    : parseConnectTimeout(headers.get("connect-timeout-ms"), maxDeadlineMs);
  if (error !== undefined) throw error;
}

/** Refuses a request in a compression that this server does not have. */
function checkCompression(headers: Headers, available: readonly Compression[]): void {
  const names = ["identity", ...available.map(({ name }) => name)];
  for (const header of ["grpc-encoding", "content-encoding", "connect-content-encoding"]) {
    const encoding = headers.get(header);
    if (encoding === null || names.includes(encoding)) continue;
    throw notServed(
      "unimplemented",
      `the request has ${header} "${encoding}", which is not served; use ${names.join(", ")}`,
    );
  }
}

/** An rpc whose requests Connect's router reads. */
interface RoutedRpc {
  method: DescMethod;
  limits: BodyLimits;
  /** Compressions that the server has. */
  compressions: readonly Compression[];
  jsonOptions: JsonOptions;
}

/** Returns true for an rpc that takes one message. */
function isSingleRequest({ methodKind }: DescMethod): boolean {
  return methodKind === "unary" || methodKind === "server_streaming";
}

/** Passes on the body of a request; refuses, with its reason, what Connect would refuse without one. */
async function* checkedBody(request: Request, rpc: RoutedRpc): AsyncGenerator<Uint8Array> {
  if (isSingleRequest(rpc.method)) yield await readMessage(request, rpc);
  else yield* streamMessages(request, rpc);
}

/** Reads the body of an rpc that takes one message, and returns it as it is if the message can be read. */
async function readMessage(request: Request, rpc: RoutedRpc): Promise<Buffer> {
  const { method, limits, jsonOptions } = rpc;
  const type = request.headers["content-type"] ?? "";
  const compression = compressionOf(request, rpc);
  const isEnveloped = hasEnvelopes(type);
  const body = await readBody(request, limits, isEnveloped ? { envelopeBytes, announcedIn: announcedBytes } : {});
  const { message, isCompressed } = isEnveloped
    ? singleMessage(body, compression !== undefined)
    : { message: body, isCompressed: compression !== undefined };
  const bytes = isCompressed ? await compression?.decompress(message, limits.maxBytes) : message;
  parseMessage(method.input, bytes ?? message, { isBinary: !type.includes("json"), jsonOptions });
  return body;
}

/** Passes on a stream; refuses one whose first message is compressed although no header says how. */
async function* streamMessages(request: Request, rpc: RoutedRpc): AsyncGenerator<Uint8Array> {
  const { "content-type": type = "" } = request.headers;
  let isChecked = compressionOf(request, rpc) !== undefined || !hasEnvelopes(type);
  for await (const chunk of streamBody(request, rpc.limits)) {
    const [flags] = chunk;
    if (!isChecked && flags !== undefined) {
      isChecked = true;
      if ((flags & compressedFlag) !== 0) throw notOneMessage("internal", "it is compressed, and no header says how");
    }
    yield chunk;
  }
}

/** Returns the compression that the headers name, of those that the server has. */
function compressionOf({ headers }: Request, { compressions }: RoutedRpc): Compression | undefined {
  const type = headers["content-type"] ?? "";
  const header = type.startsWith("application/grpc")
    ? "grpc-encoding"
    : type.startsWith("application/connect")
      ? "connect-content-encoding"
      : "content-encoding";
  return compressions.find(({ name }) => name === headers[header]);
}

/** Returns true for the forms in which each message has an envelope: gRPC, gRPC-Web and Connect's streams. */
function hasEnvelopes(type: string): boolean {
  return /^application\/(grpc|connect)/.test(type);
}
