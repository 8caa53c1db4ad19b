import { constants } from "node:http2";
import { publicPrincipal } from "../api/access.ts";
import type { ListedHeaders } from "../api/edge-context.ts";
import { clientLeft, deadlinePassed } from "../api/request-failure.ts";
import { ResponseMetadata } from "../api/response-metadata.ts";
import { nameOfRpc, type Rpc } from "../api/rpc.ts";
import { traceContextOf } from "../api/trace-context.ts";
import { type ConnectionPeer, createConnectionPeer } from "../http/connection-peer.ts";
import type { Request, Response } from "../http/handler.ts";
import { refusedStreamMs } from "../http/socket-limits.ts";
import { toConnectError } from "./errors.ts";
import type { RpcOptions } from "./rpc-options.ts";
import { runRpc, type Selected } from "./run-rpc.ts";
import { selectStreamWire, selectWire } from "./select-wire.ts";
import type { ResponseCompression } from "./wire.ts";

/**
 * Creates a handler for the forms that most clients use, those of `select-wire.ts`. It returns false for any other request and
 * leaves it untouched. Connect's router creates a chain of generators, a dozen Headers and linked signals for each request;
 * without them a durable unary call by gRPC takes two fifths less time.
 */
export function createDirectHandler(options: RpcOptions): (request: Request, response: Response) => boolean {
  const { shutdownSignal, log } = options;
  const peerOf = createConnectionPeer();
  const rpcs = new Map(options.rpcs.map((rpc) => [`/${nameOfRpc(rpc.method)}`, rpc]));
  const open = new Set<AbortController>();
  shutdownSignal.addEventListener("abort", () => {
    for (const aborting of open) aborting.abort(shutdownSignal.reason);
  });

  return (request, response) => {
    const rpc = rpcs.get(request.url ?? "");
    const selected = rpc && select(rpc, request, options.compression);
    if (selected === undefined) return false;
    const aborting = new AbortController();
    open.add(aborting);
    if (shutdownSignal.aborted) aborting.abort(shutdownSignal.reason);
    serveRpc(options, { ...selected, request, response, aborting, peerOf })
      .catch((error: unknown) => {
        log.error("a response broke off", { error, rpc: nameOfRpc(selected.rpc.method) });
        response.destroy();
      })
      .finally(() => open.delete(aborting));
    return true;
  };
}

/** Selects the wire of a request; undefined for a form that the router serves. */
function select(rpc: Rpc, request: Request, { acceptCompression }: ResponseCompression): Selected | undefined {
  if (rpc.kind === "client_streaming") return undefined;
  if (rpc.kind === "bidi_streaming") {
    // The limits of a public stream are those of the whole stream, which only the router counts.
    const wire = rpc.isPublic ? undefined : selectStreamWire(request, acceptCompression);
    return wire && { takes: "a stream", rpc, wire };
  }
  const wire = selectWire(request, rpc.kind);
  return wire && { takes: "one message", rpc, wire };
}

/** An rpc that is being served. */
type Exchange = Selected & {
  request: Request;
  response: Response;
  aborting: AbortController;
  peerOf: ConnectionPeer;
};

/** Serves one rpc: gate, deadline, read, check, run, respond. */
async function serveRpc(options: RpcOptions, exchange: Exchange): Promise<void> {
  const { gate, failures, limits } = options;
  const { rpc, wire, request, response, aborting, peerOf } = exchange;
  const { signal } = aborting;
  const { method, isPublic } = rpc;
  const metadata = new ResponseMetadata();
  let timer: NodeJS.Timeout | undefined;
  let ended: AbortSignal | undefined;
  const endRequest = () => aborting.abort(ended?.reason);
  response.once("close", () => {
    if (!response.writableEnded) aborting.abort(clientLeft());
  });
  const sent = wire.respond({ request, response, signal, metadata }, options);
  try {
    const { timeoutMs, error } = wire.timeoutOf(request, limits.maxDeadlineMs);
    const headers = headersOf(request);
    const principal = isPublic ? publicPrincipal : gate({ rpc: method, headers, signal });
    principal.ended?.addEventListener("abort", endRequest);
    ended = principal.ended;
    if (error !== undefined) throw error;
    if (timeoutMs !== undefined) timer = setTimeout(() => aborting.abort(deadlinePassed()), timeoutMs);
    const deadline = timeoutMs === undefined ? undefined : Date.now() + timeoutMs;
    const trace = traceContextOf(headers);
    const context = {
      ...{ principal, roles: principal.roles, signal, deadline, trace, headers, response: metadata, limits },
      peer: () => peerOf(request),
    };
    await runRpc(options, exchange, context, sent);
  } catch (error) {
    // The stream of a client that left is destroyed before its response emits `close`.
    if (isBroken(response)) aborting.abort(clientLeft());
    sent.fail(toConnectError(failures.failureOf(error, nameOfRpc(method), signal)));
    // The end of a drain cuts what its clients leave unread.
    if (signal.aborted && !options.shutdownSignal.aborted) cutUnread(response);
  } finally {
    clearTimeout(timer);
    ended?.removeEventListener("abort", endRequest);
  }
}

/** Returns true if nothing more can be sent. */
function isBroken(response: Response): boolean {
  return "stream" in response ? response.stream.destroyed : response.destroyed;
}

/** Cuts an aborted response that its client does not read: it would stay open for as long as the client does. */
function cutUnread(response: Response): void {
  const cut = () => {
    if ("stream" in response) response.stream.close(constants.NGHTTP2_CANCEL);
    else response.destroy();
  };
  const timer = setTimeout(cut, refusedStreamMs);
  response.once("close", () => clearTimeout(timer));
}

function headersOf({ headers }: Request): ListedHeaders {
  const get = (name: string) => {
    const value = headers[name];
    return Array.isArray(value) ? value.join(", ") : (value ?? null);
  };
  return { get, entries: () => Object.keys(headers).map((name) => [name, get(name) ?? ""]) };
}
