import type { DescMethod, Message } from "@bufbuild/protobuf";
import {
  Code,
  ConnectError,
  type ConnectRouter,
  createContextKey,
  type HandlerContext,
  type Interceptor,
} from "@connectrpc/connect";
import { connectNodeAdapter } from "@connectrpc/connect-node";
import type { Principal } from "../../core/principal.ts";
import type { CheckMessage } from "../api/check-message.ts";
import type { EdgeContext, EdgeLimits } from "../api/edge-context.ts";
import type { Failures } from "../api/failures.ts";
import { unreadableRequest } from "../api/request-failure.ts";
import { nameOfRpc, type Rpc } from "../api/rpc.ts";
import { traceContextOf } from "../api/trace-context.ts";
import type { Handler } from "../http/handler.ts";
import { jsonOptions, type RpcOptions } from "./direct.ts";
import { toConnectError } from "./errors.ts";

/** Services that need no token, and the function that adds them to the router. */
export interface PublicServices {
  typeNames: readonly string[];
  route(router: ConnectRouter): void;
}

/** Creates a handler for all forms that Connect's router serves: Connect, gRPC and gRPC-Web. */
export function createConnectHandler(options: RpcOptions, open: PublicServices): Handler {
  const { rpcs, gate, checkMessage, failures, limits, compression, shutdownSignal } = options;
  return connectNodeAdapter({
    ...compression,
    jsonOptions,
    readMaxBytes: limits.requestBytes,
    maxTimeoutMs: limits.maxDeadlineMs,
    shutdownSignal,
    interceptors: [reportFailures(failures), checkRequests(checkMessage)],
    requestGate({ service, method, requestHeader, signal, values }) {
      if (open.typeNames.includes(service.typeName)) return;
      try {
        values.set(principalKey, gate({ rpc: method, headers: requestHeader, signal }));
      } catch (error) {
        throw toConnectError(failures.failureOf(error, nameOfRpc(method), signal));
      }
    },
    routes(router) {
      for (const rpc of rpcs) routeRpc(router, rpc, limits);
      open.route(router);
    },
  });
}

const principalKey = createContextKey<Principal | undefined>(undefined, { description: "principal" });

function routeRpc(router: ConnectRouter, { method, run }: Rpc, limits: EdgeLimits): void {
  const serve = (message: Message, context: HandlerContext) => run(message, edgeContextOf(context, limits));
  // Connect has no type for the function of a method that is not known when the code is compiled.
  router.rpc(method, serve as never);
}

function edgeContextOf(handler: HandlerContext, limits: EdgeLimits): EdgeContext {
  const { requestHeader: headers, values } = handler;
  const principal = values.get(principalKey);
  if (principal === undefined) throw new Error("a request bypassed the access gate");
  const signal = principal.ended ? AbortSignal.any([handler.signal, principal.ended]) : handler.signal;
  const timeoutMs = handler.timeoutMs();
  const deadline = timeoutMs === undefined ? undefined : Date.now() + timeoutMs;
  return { principal, roles: principal.roles, signal, deadline, trace: traceContextOf(headers), headers, limits };
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
    throw error instanceof ConnectError && error.code === Code.Internal ? unreadableRequest(error.rawMessage) : error;
  }
}
