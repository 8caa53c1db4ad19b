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
import { type Compression, compressedFlag, type UniversalHandler } from "@connectrpc/connect/protocol";
import { universalRequestFromNodeRequest, universalResponseToNodeResponse } from "@connectrpc/connect-node";
import { peerOf, type SocketEnds } from "../../core/peer-uid.ts";
import type { Principal } from "../../core/principal.ts";
import { type AccessGate, publicPrincipal } from "../api/access.ts";
import type { CheckMessage } from "../api/check-message.ts";
import type { EdgeContext, EdgeLimits } from "../api/edge-context.ts";
import type { Failures } from "../api/failures.ts";
import {
  notOneMessage,
  notServed,
  RequestFailure,
  requestTooLarge,
  unreadableRequest,
} from "../api/request-failure.ts";
import { nameOfRpc, type Rpc } from "../api/rpc.ts";
import { traceContextOf } from "../api/trace-context.ts";
import type { Handler, Request, Response } from "../http/handler.ts";
import { sendWhole } from "../http/mounts.ts";
import type { RpcOptions } from "./direct.ts";
import { failureResponse, toConnectError } from "./errors.ts";
import { linkedSignal } from "./linked-signal.ts";
import { type BodyLimits, streamBody } from "./request-body.ts";

/** Creates a handler for all forms that Connect's router serves: Connect, gRPC and gRPC-Web. */
export function createConnectHandler(options: RpcOptions): Handler {
  const { rpcs, failures, limits, budget, log } = options;
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
    const { handler, bounds } = route;
    let hasLeft = false;
    response.once("close", () => {
      hasLeft = true;
    });
    const body = reportErrors(checkedBody(request, { ...bounds, budget }), (error) =>
      toConnectError(failures.failureOf(error, nameOfRpc(handler.method))),
    );
    const values = createContextValues().set(socketKey, request.socket);
    handler({ ...universalRequestFromNodeRequest(request, response, undefined, values), body })
      .then((answer) => universalResponseToNodeResponse(answer, response))
      .catch((error: unknown) => {
        if (hasLeft || ConnectError.from(error).code === Code.Aborted) return;
        log.error("a response broke off", { error, rpc: nameOfRpc(handler.method) });
        response.destroy();
      });
  };
}

/** Refuses a path below a service that names none of its rpcs. */
function sendNotServed(request: Request, response: Response, { failureOf }: Failures): void {
  const name = (request.url ?? "").slice(1);
  const failure = failureOf(notServed("unimplemented", `${name} is not an rpc of this server`), name);
  const { body } = failureResponse(failure);
  sendWhole(response, 404, "application/json", body);
}

/** A handler of Connect's router and the bounds on the body of its requests. */
interface Route {
  handler: UniversalHandler;
  bounds: Omit<BodyLimits, "budget">;
}

/** Creates the routes of rpcs that share an access. */
function createRoutes(
  options: RpcOptions,
  { rpcs, admit, readMaxBytes }: { rpcs: readonly Rpc[]; admit: AccessGate; readMaxBytes: number },
): Route[] {
  const { checkMessage, failures, limits, compression, jsonOptions, shutdownSignal } = options;
  const report = (error: unknown) => toConnectError(failures.failureOf(error, "decompress"));
  const available = compression.acceptCompression.map((one) => refuseLarge(one, report));
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
      } catch (error) {
        throw toConnectError(failures.failureOf(error, nameOfRpc(method), signal));
      }
    },
  });
  const isPublic = new Map(rpcs.map((rpc) => [rpc.method, rpc.isPublic]));
  for (const rpc of rpcs) routeRpc(router, rpc, limits);
  return router.handlers.map((handler) => {
    const isLong = isPublic.get(handler.method) === false && !isSingleRequest(handler.method);
    const maxBytes = isLong ? Number.POSITIVE_INFINITY : readMaxBytes + envelopeBytes;
    return { handler, bounds: { maxBytes, maxMs: isLong ? limits.maxDeadlineMs : limits.bodyMs } };
  });
}

function isSingleRequest({ methodKind }: DescMethod): boolean {
  return methodKind === "unary" || methodKind === "server_streaming";
}

/** Returns a compression that refuses with REQUEST_TOO_LARGE what Connect refuses without a reason. */
function refuseLarge(compression: Compression, report: (error: unknown) => ConnectError): Compression {
  return {
    ...compression,
    async decompress(bytes, readMaxBytes) {
      try {
        return await compression.decompress(bytes, readMaxBytes);
      } catch (error) {
        const isLarge = error instanceof ConnectError && error.code === Code.ResourceExhausted;
        throw isLarge ? report(requestTooLarge(readMaxBytes)) : error;
      }
    },
  };
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

const principalKey = createContextKey<Principal | undefined>(undefined, { description: "principal" });

const socketKey = createContextKey<SocketEnds>({}, { description: "ends of the connection" });

/** Size of what precedes a message in gRPC, gRPC-Web and Connect's streams. */
const envelopeBytes = 5;

/** Passes a body on; refuses one whose first message is compressed although no header says how. */
async function* checkedBody(request: Request, limits: BodyLimits): AsyncGenerator<Uint8Array> {
  const { "content-type": type = "", ...headers } = request.headers;
  const encoding = headers["grpc-encoding"] ?? headers["connect-content-encoding"] ?? "identity";
  let isChecked = encoding !== "identity" || !/^application\/(grpc|connect)/.test(type);
  for await (const chunk of streamBody(request, limits)) {
    const [flags] = chunk;
    if (!isChecked && flags !== undefined) {
      isChecked = true;
      if ((flags & compressedFlag) !== 0) throw notOneMessage("internal", "it is compressed, and no header says how");
    }
    yield chunk;
  }
}

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
  const serve = (request: never, handler: HandlerContext) => run(request, edgeContextOf(handler, limits));
  // Connect has no type for the function of a method that is not known when the code is compiled.
  router.rpc(method, serve as never);
}

function edgeContextOf(handler: HandlerContext, limits: EdgeLimits): EdgeContext {
  const { requestHeader: headers, values } = handler;
  const principal = values.get(principalKey);
  if (principal === undefined) throw new Error("a request bypassed the access gate");
  const signal = linkedSignal(handler.signal, principal.ended);
  const timeoutMs = handler.timeoutMs();
  const deadline = timeoutMs === undefined ? undefined : Date.now() + timeoutMs;
  const trace = traceContextOf(headers);
  const { responseHeader, responseTrailer } = handler;
  const response = { headers: responseHeader, trailers: responseTrailer };
  return {
    ...{ principal, roles: principal.roles, signal, deadline, trace, headers, response, limits },
    peer: () => peerOf(values.get(socketKey)),
  };
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
async function* readableStream<T extends Message>(
  { message: messages, method }: { message: AsyncIterable<T>; method: DescMethod },
  checkMessage: CheckMessage,
) {
  try {
    for await (const message of messages) {
      checkMessage(method.input, message);
      yield message;
    }
  } catch (error) {
    const isUnreadable =
      error instanceof ConnectError && error.code === Code.Internal && !(error.cause instanceof RequestFailure);
    throw isUnreadable ? unreadableRequest(error.rawMessage) : error;
  }
}
