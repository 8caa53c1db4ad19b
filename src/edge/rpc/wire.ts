import type { EventEmitter } from "node:events";
import type { JsonReadOptions, JsonWriteOptions } from "@bufbuild/protobuf";
import type { ConnectError } from "@connectrpc/connect";
import { type Compression, compressionNegotiate } from "@connectrpc/connect/protocol";
import type { ResponseMetadata } from "../api/response-metadata.ts";
import type { Request } from "../http/handler.ts";
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
  writeHead(status: number, headers: Record<string, string>): unknown;
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
