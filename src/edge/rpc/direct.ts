import { create, type DescMessage, type Message, type MessageInitShape, toJsonString } from "@bufbuild/protobuf";
import { encodeMessage, type KnownBytes } from "../../core/encode-message.ts";
import type { Logger } from "../../core/logger.ts";
import { peerOf } from "../../core/peer-uid.ts";
import { type AccessGate, publicPrincipal } from "../api/access.ts";
import type { CheckMessage } from "../api/check-message.ts";
import type { EdgeContext, EdgeLimits, ListedHeaders } from "../api/edge-context.ts";
import type { Failures } from "../api/failures.ts";
import { clientLeft, deadlinePassed } from "../api/request-failure.ts";
import { ResponseMetadata } from "../api/response-metadata.ts";
import { nameOfRpc, type Rpc, type SingleRequestRpc } from "../api/rpc.ts";
import { traceContextOf } from "../api/trace-context.ts";
import type { ByteBudget } from "../http/byte-budget.ts";
import type { Request, Response } from "../http/handler.ts";
import { toConnectError } from "./errors.ts";
import { parseMessage } from "./parse-message.ts";
import { selectWire } from "./select-wire.ts";
import type { JsonOptions, ResponseCompression, Wire, WireResponse } from "./wire.ts";

/** Options of both ways in which rpcs are served. */
export interface RpcOptions {
  rpcs: readonly Rpc[];
  gate: AccessGate;
  checkMessage: CheckMessage;
  failures: Failures;
  limits: EdgeLimits;
  /** Binary forms that need not be encoded again. */
  known: KnownBytes;
  compression: ResponseCompression;
  jsonOptions: JsonOptions;
  /** Budget of the bytes of requests that have not arrived whole. */
  budget: ByteBudget;
  /** Aborts every request when it is aborted, with the same reason. */
  shutdownSignal: AbortSignal;
  log: Logger;
}

/**
 * Creates a handler for the forms that most clients use, those of `selectWire`. It returns false for any other request and
 * leaves it untouched. Connect's router creates a chain of generators, a dozen Headers and linked signals for each request;
 * without them a durable unary call by gRPC takes two fifths less time.
 */
export function createDirectHandler(options: RpcOptions): (request: Request, response: Response) => boolean {
  const { shutdownSignal, log } = options;
  const rpcs = new Map(options.rpcs.filter(isSingle).map((rpc) => [`/${nameOfRpc(rpc.method)}`, rpc]));
  const open = new Set<AbortController>();
  shutdownSignal.addEventListener("abort", () => {
    for (const aborting of open) aborting.abort(shutdownSignal.reason);
  });

  return (request, response) => {
    const rpc = rpcs.get(request.url ?? "");
    const wire = rpc && selectWire(request, rpc.kind);
    if (rpc === undefined || wire === undefined) return false;
    const aborting = new AbortController();
    open.add(aborting);
    if (shutdownSignal.aborted) aborting.abort(shutdownSignal.reason);
    serveRpc(options, { rpc, wire, request, response, aborting })
      .catch((error: unknown) => {
        log.error("a response broke off", { error, rpc: nameOfRpc(rpc.method) });
        response.destroy();
      })
      .finally(() => open.delete(aborting));
    return true;
  };
}

function isSingle(rpc: Rpc): rpc is SingleRequestRpc {
  return rpc.kind === "unary" || rpc.kind === "server_streaming";
}

/** An rpc that is being served. */
interface Exchange {
  rpc: SingleRequestRpc;
  wire: Wire;
  request: Request;
  response: Response;
  aborting: AbortController;
}

/** Serves one rpc: gate, deadline, read, check, run, respond. */
async function serveRpc(options: RpcOptions, { rpc, wire, request, response, aborting }: Exchange): Promise<void> {
  const { gate, checkMessage, failures, limits, budget } = options;
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
    const maxBytes = isPublic ? limits.publicRequestBytes : limits.requestBytes;
    const body = await wire.read(request, { maxBytes, maxMs: limits.bodyMs, budget });
    const { isBinary } = wire;
    const message = parseMessage(method.input, body, { isBinary, jsonOptions: options.jsonOptions });
    checkMessage(method.input, message);
    const trace = traceContextOf(headers);
    const context = {
      ...{ principal, roles: principal.roles, signal, deadline, trace, headers, response: metadata, limits },
      peer: () => peerOf(request.socket),
    };
    await respond({ rpc, message, context }, sent, (message) => encode(method.output, wire, message, options));
  } catch (error) {
    sent.fail(toConnectError(failures.failureOf(error, nameOfRpc(method), signal)));
  } finally {
    clearTimeout(timer);
    ended?.removeEventListener("abort", endRequest);
  }
}

/** Runs the rpc and sends its response message or messages. */
async function respond(
  { rpc, message, context }: { rpc: SingleRequestRpc; message: Message; context: EdgeContext },
  sent: WireResponse,
  encode: (message: MessageInitShape<DescMessage>) => Uint8Array,
): Promise<void> {
  if (rpc.kind === "unary") return await sent.end(encode(await rpc.run(message, context)));
  for await (const response of rpc.run(message, context)) {
    await sent.send(encode(response));
    context.signal.throwIfAborted();
  }
  await sent.end();
}

function encode(
  schema: DescMessage,
  { isBinary }: Wire,
  given: MessageInitShape<DescMessage>,
  { known, jsonOptions }: Pick<RpcOptions, "known" | "jsonOptions">,
): Uint8Array {
  const message = create(schema, given);
  if (!isBinary) return Buffer.from(toJsonString(schema, message, jsonOptions));
  return known(message) ?? encodeMessage(schema, message, known);
}

function headersOf({ headers }: Request): ListedHeaders {
  const get = (name: string) => {
    const value = headers[name];
    return Array.isArray(value) ? value.join(", ") : (value ?? null);
  };
  return { get, entries: () => Object.keys(headers).map((name) => [name, get(name) ?? ""]) };
}
