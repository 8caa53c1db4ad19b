import type { EventEmitter } from "node:events";
import {
  type DescMessage,
  fromBinary,
  fromJsonString,
  type JsonReadOptions,
  type JsonWriteOptions,
  type Message,
} from "@bufbuild/protobuf";
import type { ConnectError } from "@connectrpc/connect";
import { type Compression, compressedFlag, compressionNegotiate } from "@connectrpc/connect/protocol";
import type { Logger } from "../../core/logger.ts";
import { writeTogether } from "../../core/write-together.ts";
import type { AccessGate } from "../api/access.ts";
import type { Failures } from "../api/failures.ts";
import { notOneMessage, unreadableRequest } from "../api/request-failure.ts";
import type { CheckMessage, EdgeLimits, ResponseMetadata, Rpc } from "../api/rpc.ts";
import type { Request } from "../http/handler.ts";
import type { ByteBudget } from "../http/socket-limits.ts";
import type { BodyLimits } from "./request-body.ts";

/** Form in which a protocol transports requests and responses. */
export interface Wire {
  /** True if messages are binary; otherwise they are JSON. */
  readonly isBinary: boolean;
  /** Reads the time that the client waits from the headers. */
  timeoutOf(request: Request, maxMs: number): { timeoutMs?: number; error?: ConnectError | undefined };
  /** Prepares a response, of which nothing is sent yet; `signal` is aborted when the client no longer wants it. */
  respond(
    to: { request: Request; response: Sink; signal: AbortSignal; metadata: ResponseMetadata },
    options: ResponseOptions,
  ): WireResponse;
}

/** Wire of rpcs that take one message. */
export interface SingleWire extends Wire {
  /** Reads the only message of a request. */
  read(request: Request, limits: BodyLimits): Promise<Buffer>;
}

/** Wire of rpcs that take a stream, in which each message has an envelope. */
export interface StreamWire extends Wire {
  /** Header that names the compression of request messages. */
  readonly encodingHeader: string;
}

/** A response that is being sent. It ends or fails once. */
export interface WireResponse {
  /** Sends one message of a stream; resolves when the buffer has space for the next, undefined if it has. */
  send(message: Uint8Array): Promise<void> | undefined;
  /** Ends the response, with a last message if there is one. */
  end(message?: Uint8Array): Promise<void>;
  fail(error: ConnectError): void;
}

/** Destination of a response, in either version of HTTP. */
export interface Sink extends EventEmitter {
  readonly headersSent: boolean;
  readonly writableCorked: number;
  writeHead(status: number, headers: Record<string, string>): unknown;
  cork(): void;
  uncork(): void;
  write(chunk: Uint8Array): boolean;
  addTrailers(trailers: Record<string, string>): void;
  end(): unknown;
  end(chunk: Uint8Array): unknown;
}

/** Form of a response. */
export interface ResponseOptions {
  compression: ResponseCompression;
  /** Options of JSON, with the types of messages that may be in an Any. */
  jsonOptions: JsonOptions;
}

/** Options of reading and writing JSON. */
export type JsonOptions = Partial<JsonReadOptions & JsonWriteOptions>;

/** Compression of messages for clients that accept it. */
export interface ResponseCompression {
  acceptCompression: Compression[];
  compressMinBytes: number;
}

/** Returns the compression that the client accepts; null if there is none. */
export function negotiateCompression(
  available: Compression[],
  accepted: string | readonly string[] | undefined,
): Compression | null {
  return accepted === undefined ? null : compressionNegotiate(available, null, String(accepted), "").response;
}

/** Returns a header's value as Connect's functions take it. */
export function headerValue(value: string | readonly string[] | undefined): string | null {
  return value === undefined ? null : String(value);
}

/** Size of what precedes each message of gRPC, gRPC-Web and Connect's streams: a byte of flags, then the length in four bytes. */
export const envelopeBytes = 5;

/** Compression of one response. */
interface Compressing {
  /** Compression that the client accepts; null if there is none. */
  compression: Compression | null;
  compressMinBytes: number;
}

/** Puts a message into its envelope; it takes time only if the message is compressed. */
export function envelope(
  message: Uint8Array,
  { compression, compressMinBytes }: Compressing,
): Buffer | Promise<Buffer> {
  if (compression === null || message.length < compressMinBytes) return withFlags(0, message);
  return compression.compress(message).then((data) => withFlags(compressedFlag, data));
}

/** Puts bytes into an envelope with these flags. */
export function withFlags(flags: number, data: Uint8Array): Buffer {
  const bytes = Buffer.allocUnsafe(envelopeBytes + data.length);
  bytes.writeUInt8(flags);
  bytes.writeUInt32BE(data.length, 1);
  bytes.set(data, envelopeBytes);
  return bytes;
}

/** Creates the function that sends the messages of a stream in order, those of one turn together; it waits while the client reads none. */
export function createEnvelopeSender(
  response: Sink,
  { signal, sendHeaders, ...compressing }: Compressing & { signal: AbortSignal; sendHeaders: () => void },
): (message: Uint8Array) => Promise<void> | undefined {
  const write = (bytes: Buffer) => {
    sendHeaders();
    writeTogether(response);
    return response.write(bytes) || signal.aborted ? undefined : drained(response, signal);
  };
  return (message) => {
    const bytes = envelope(message, compressing);
    return bytes instanceof Promise ? bytes.then(write) : write(bytes);
  };
}

/** Resolves when the response can be written to again, or need not be any more. */
function drained(response: Sink, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const done = () => {
      response.off("drain", done).off("error", done).off("close", done);
      signal.removeEventListener("abort", done);
      resolve();
    };
    response.on("drain", done).on("error", done).on("close", done);
    signal.addEventListener("abort", done);
  });
}

/** Returns the size of the message that the first chunk of a body announces. */
export function announcedBytes(begin: Buffer): number {
  return begin.length < envelopeBytes ? 0 : begin.readUInt32BE(1);
}

/** Returns the message of a body, which must hold exactly one; compressed only if the headers name an encoding. */
export function singleMessage(body: Buffer, hasEncoding: boolean): { message: Buffer; isCompressed: boolean } {
  const [flags = 0] = body;
  if (body.length === 0) throw notOneMessage("unimplemented", "it has none");
  const length = body.length < envelopeBytes ? Number.POSITIVE_INFINITY : body.readUInt32BE(1);
  if (body.length < envelopeBytes + length) throw notOneMessage("invalid_argument", "it ends in the middle of one");
  if (body.length > envelopeBytes + length) throw notOneMessage("unimplemented", "it has more than one");
  if ((flags & ~compressedFlag) !== 0) throw notOneMessage("invalid_argument", `it has the unknown flags ${flags}`);
  const isCompressed = flags === compressedFlag;
  if (isCompressed && !hasEncoding) throw notOneMessage("internal", "it is compressed, and no header says how");
  return { message: body.subarray(envelopeBytes), isCompressed };
}

/** Parses a request message; refuses bytes that are not one. */
export function parseMessage(
  schema: DescMessage,
  bytes: Uint8Array,
  { isBinary, jsonOptions }: { isBinary: boolean; jsonOptions: JsonOptions },
): Message {
  try {
    return isBinary ? fromBinary(schema, bytes) : fromJsonString(schema, Buffer.from(bytes).toString(), jsonOptions);
  } catch (cause) {
    throw unreadableRequest(cause);
  }
}

/** Returns the binary form of a message that need not be encoded again. */
export type KnownBytes = (message: Message) => Uint8Array | undefined;

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
