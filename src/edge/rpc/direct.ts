import {
  create,
  type DescMessage,
  type Message,
  type MessageInitShape,
  toBinary,
  toJsonString,
} from "@bufbuild/protobuf";
import { Code, ConnectError } from "@connectrpc/connect";
import { type Compression, compressedFlag } from "@connectrpc/connect/protocol";
import { publicPrincipal } from "../api/access.ts";
import { bodyTimedOut, clientLeft, deadlinePassed, messageTooLarge, unreadableStream } from "../api/request-failure.ts";
import {
  type BidiRpc,
  createEdgeContext,
  type EdgeContext,
  type ListedHeaders,
  nameOfRpc,
  ResponseMetadata,
  type Rpc,
  type SingleRequestRpc,
} from "../api/rpc.ts";
import {
  type ConnectionPeer,
  createConnectionPeer,
  cutResponse,
  isBroken,
  type Request,
  type Response,
} from "../http/handler.ts";
import { refusedStreamMs } from "../http/socket-limits.ts";
import { toConnectError } from "./errors.ts";
import { type BodyLimits, bodyLimits } from "./request-body.ts";
import { selectStreamWire, selectWire } from "./select-wire.ts";
import {
  envelopeBytes,
  headerValue,
  parseMessage,
  type ResponseCompression,
  type RpcOptions,
  type SingleWire,
  type StreamWire,
  type WireResponse,
} from "./wire.ts";

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
    const peer = () => peerOf(request);
    const context = createEdgeContext({ principal, signal, timeoutMs, headers, response: metadata, limits, peer });
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

/** Cuts an aborted response that its client does not read: it would stay open for as long as the client does. */
function cutUnread(response: Response): void {
  const timer = setTimeout(cutResponse, refusedStreamMs, response);
  response.once("close", () => clearTimeout(timer));
}

function headersOf({ headers }: Request): ListedHeaders {
  const get = (name: string) => {
    const value = headers[name];
    return Array.isArray(value) ? value.join(", ") : (value ?? null);
  };
  return { get, entries: () => Object.keys(headers).map((name) => [name, get(name) ?? ""]) };
}

/** An rpc and the wire of a request to it. */
type Selected =
  | { takes: "one message"; rpc: SingleRequestRpc; wire: SingleWire }
  | { takes: "a stream"; rpc: BidiRpc; wire: StreamWire };

/** Reads the request of an rpc, runs it, and sends its response message or messages. */
async function runRpc(
  options: RpcOptions,
  { request, ...selected }: Selected & { request: Request },
  context: EdgeContext,
  sent: WireResponse,
): Promise<void> {
  const messages = createMessageForm(options, selected);
  if (selected.takes === "a stream") {
    const received = receive(options, { request, ...selected }, context, messages.decode);
    try {
      await sendAll(selected.rpc.run(received.messages, context), sent, messages.encode, context.signal);
    } finally {
      // The function may end while it reads, or without having read to the end.
      received.chunks.close();
      received.messages.return().catch(() => undefined);
    }
    return;
  }
  const { rpc, wire } = selected;
  const { signal } = context;
  const body = await wire.read(request, bodyLimits(options, rpc.isPublic));
  const message = messages.decode(body);
  // The credential may have ended since the headers came.
  signal.throwIfAborted();
  if (rpc.kind === "unary") await sent.end(messages.encode(await rpc.run(message, context)));
  else await sendAll(rpc.run(message, context), sent, messages.encode, signal);
}

/** Creates the functions between the messages of an rpc and their bytes. */
function createMessageForm(
  { checkMessage, jsonOptions, known }: RpcOptions,
  { rpc: { method }, wire: { isBinary } }: Selected,
) {
  return {
    decode(bytes: Uint8Array): Message {
      return checkMessage(method.input, parseMessage(method.input, bytes, { isBinary, jsonOptions }));
    },
    encode(given: MessageInitShape<DescMessage>): Uint8Array {
      const message = create(method.output, given);
      if (!isBinary) return Buffer.from(toJsonString(method.output, message, jsonOptions));
      return known(message) ?? toBinary(method.output, message);
    },
  };
}

/** Reads the request messages of a stream, as its function asks for them. */
function receive(
  options: RpcOptions,
  { rpc, wire, request }: { rpc: BidiRpc; wire: StreamWire; request: Request },
  { signal }: EdgeContext,
  decode: (bytes: Uint8Array) => Message,
) {
  const chunks = new BodyChunks(request, signal);
  const encoding = headerValue(request.headers[wire.encodingHeader]);
  const limits = bodyLimits(options);
  const messages = readMessages(chunks, {
    limits: { ...limits, maxBytes: rpc.messageBytes ?? limits.maxBytes },
    compression: options.compression.acceptCompression.find(({ name }) => name === encoding),
    decode,
  });
  return { chunks, messages };
}

/** Sends the messages of a stream, each when the client has read those before it. */
async function sendAll(
  messages: AsyncIterable<MessageInitShape<DescMessage>>,
  sent: WireResponse,
  encode: (message: MessageInitShape<DescMessage>) => Uint8Array,
  signal: AbortSignal,
): Promise<void> {
  for await (const message of messages) {
    const sending = sent.send(encode(message));
    if (sending !== undefined) await sending;
    signal.throwIfAborted();
  }
  await sent.end();
}

/** Form of the messages of a stream. */
interface MessageForm<T> {
  /** Limits of each message. */
  limits: BodyLimits;
  /** Compression that the headers name. */
  compression: Compression | undefined;
  /** Returns the message of these bytes; throws for bytes that are none. */
  decode: (bytes: Uint8Array) => T;
}

/** Reads the messages of a stream, each when it is asked for. */
async function* readMessages<T>(
  chunks: BodyChunks,
  { limits: { maxBytes, maxMs, budget }, compression, decode }: MessageForm<T>,
): AsyncGenerator<T, void> {
  const parser = new EnvelopeParser();
  let reservedBytes = 0;
  const reserve = (bytes: number) => {
    budget.reserve(bytes - reservedBytes);
    reservedBytes = bytes;
  };
  let untilMs: number | undefined;
  try {
    for (;;) {
      if ((parser.announcedBytes ?? 0) > maxBytes) throw messageTooLarge(maxBytes);
      const next = parser.take();
      if (next !== undefined) {
        untilMs = undefined;
        const { flags, message } = next;
        yield decode(flags === 0 ? message : await decompress(flags, message, { compression, maxBytes }));
        continue;
      }
      reserve(parser.restBytes);
      // A message that has begun must arrive in time; the next one may begin at any time.
      if (parser.restBytes > 0) untilMs ??= performance.now() + maxMs;
      const chunk = await chunks.next(untilMs, maxMs);
      if (chunk !== undefined) parser.push(chunk);
      else if (parser.restBytes === 0 || chunks.isClosed) return;
      else throw unreadableStream("invalid_argument", "it ends in the middle of a message");
    }
  } finally {
    reserve(0);
    chunks.close();
  }
}

/** Decompresses a message; refuses flags that a request cannot have. */
async function decompress(
  flags: number,
  message: Uint8Array,
  { compression, maxBytes }: { compression: Compression | undefined; maxBytes: number },
): Promise<Uint8Array> {
  if (flags !== compressedFlag) throw unreadableStream("invalid_argument", `a message has the unknown flags ${flags}`);
  if (compression === undefined) throw unreadableStream("internal", "a message is compressed, and no header says how");
  try {
    return await compression.decompress(message, maxBytes);
  } catch (error) {
    if (!(error instanceof ConnectError)) throw error;
    if (error.code === Code.ResourceExhausted) throw messageTooLarge(maxBytes);
    throw unreadableStream("invalid_argument", `a message is not compressed by ${compression.name}`);
  }
}

/** Splits the bytes of a stream into envelopes. */
export class EnvelopeParser {
  private rest: Buffer = Buffer.alloc(0);
  /** Memory in which `rest` lies. */
  private space: Buffer = this.rest;

  /** Number of bytes that are not part of a message that was taken. */
  get restBytes(): number {
    return this.rest.length;
  }

  /** Size that the next message announces; undefined if not even that has arrived. */
  get announcedBytes(): number | undefined {
    return this.rest.length < envelopeBytes ? undefined : this.rest.readUInt32BE(1);
  }

  /** Adds bytes. The capacity doubles, so that a message in many chunks is not copied for each of them. */
  push(chunk: Buffer): void {
    if (this.rest.length === 0) {
      this.rest = chunk;
      this.space = chunk;
      return;
    }
    const size = this.rest.length + chunk.length;
    let start = this.rest.byteOffset - this.space.byteOffset;
    if (start + size > this.space.length) {
      // Messages that were taken may be parts of the old memory.
      this.space = Buffer.allocUnsafeSlow(2 * size);
      this.space.set(this.rest);
      start = 0;
    }
    this.space.set(chunk, start + this.rest.length);
    this.rest = this.space.subarray(start, start + size);
  }

  /** Takes the next message; undefined while it has not arrived whole. */
  take(): { flags: number; message: Buffer } | undefined {
    const end = envelopeBytes + (this.announcedBytes ?? Number.POSITIVE_INFINITY);
    if (this.rest.length < end) return undefined;
    const [flags = 0] = this.rest;
    const message = this.rest.subarray(envelopeBytes, end);
    this.rest = this.rest.subarray(end);
    return { flags, message };
  }
}

/**
 * Chunks of the body of a request, each read when it is asked for. While none is asked for, the client can send only what the
 * windows of HTTP/2 hold, and no more is in memory.
 */
class BodyChunks {
  private readonly request: Request;
  private readonly signal: AbortSignal;
  private wake: () => void = () => undefined;
  private readonly onNews = () => this.wake();
  private hasStopped = false;

  /** Creates the chunks of a request that is abandoned when the signal is aborted. */
  constructor(request: Request, signal: AbortSignal) {
    this.request = request;
    this.signal = signal;
    request.on("readable", this.onNews).on("end", this.onNews).on("error", this.onNews);
    signal.addEventListener("abort", this.onNews);
  }

  /** True if the rest is discarded. */
  get isClosed(): boolean {
    return this.hasStopped;
  }

  /** Returns the next chunk; undefined at the end, or once they are closed. Throws the reason of an abort, and BODY_TIMEOUT after `untilMs`. */
  async next(untilMs: number | undefined, maxMs: number): Promise<Buffer | undefined> {
    for (;;) {
      if (this.hasStopped) return undefined;
      this.signal.throwIfAborted();
      const chunk: Buffer | null = this.request.read();
      if (chunk !== null) return chunk;
      if (this.request.readableEnded) return undefined;
      if (untilMs !== undefined && performance.now() >= untilMs) throw bodyTimedOut(maxMs);
      await this.news(untilMs);
    }
  }

  private news(untilMs: number | undefined): Promise<void> {
    return new Promise((resolve) => {
      const timer = untilMs === undefined ? undefined : setTimeout(resolve, Math.ceil(untilMs - performance.now()));
      this.wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }

  /** Stops reading; the connection discards the rest. */
  close(): void {
    this.hasStopped = true;
    this.request.off("readable", this.onNews).off("end", this.onNews).off("error", this.onNews);
    this.signal.removeEventListener("abort", this.onNews);
    this.wake();
  }
}
