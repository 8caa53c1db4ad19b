import type { EventEmitter } from "node:events";
import type { ConnectError } from "@connectrpc/connect";
import { type Compression, compressedFlag, compressionNegotiate } from "@connectrpc/connect/protocol";
import * as connect from "@connectrpc/connect/protocol-connect";
import * as grpc from "@connectrpc/connect/protocol-grpc";
import type { Request } from "../http/sockets.ts";
import { clientLeft, notOneMessage, requestTooLarge } from "./errors.ts";

/** How a protocol says what a client asks and what it is answered. */
export interface Wire {
  readonly protocol: "connect" | "grpc";
  /** Whether messages are in binary; if not, they are in JSON. */
  readonly isBinary: boolean;
  /** How long the client waits. */
  timeoutOf(request: Request, maxMs: number): { timeoutMs?: number; error?: ConnectError | undefined };
  /** Reads the only message of a request. */
  read(request: Request, maxBytes: number): Promise<Buffer>;
  /** Prepares an answer, nothing of which is sent yet; the signal is aborted when it is no longer wanted. */
  answer(to: { request: Request; response: Sink; signal: AbortSignal }, packing: Packing): WireAnswer;
}

/** An answer that is being sent. It is ended, or fails, once. */
export interface WireAnswer {
  /** Sends a message of many; resolves when there is room for the next. */
  send(message: Uint8Array): Promise<void>;
  /** Ends it, with a last message if there is one. */
  end(message?: Uint8Array): Promise<void>;
  fail(error: ConnectError): void;
}

/** What an answer is written to, of either version of HTTP. */
interface Sink extends EventEmitter {
  readonly headersSent: boolean;
  writeHead(status: number, headers: Record<string, string>): unknown;
  write(chunk: Uint8Array): boolean;
  addTrailers(trailers: Record<string, string>): void;
  end(): unknown;
  end(chunk: Uint8Array): unknown;
}

/** The kinds of rpcs that take one message. */
export type AskedOnce = "unary" | "server_streaming";

/** Which messages of an answer are compressed, for who takes that. */
export interface Packing {
  acceptCompression: Compression[];
  compressMinBytes: number;
}

/** The wire of a request by gRPC, or by Connect with one answer, that is not compressed itself; undefined for any other. */
export function wireOf({ method, headers }: Request, kind: AskedOnce): Wire | undefined {
  if (method !== "POST") return undefined;
  if (isPacked(headers["grpc-encoding"]) || isPacked(headers["content-encoding"])) return undefined;
  const type = headers["content-type"];
  if (type === "application/grpc" || type === "application/grpc+proto") return byGrpc;
  if (type === "application/proto" && kind === "unary") return byConnect;
  if (type === "application/json" && kind === "unary") return byConnectInJson;
  return undefined;
}

/** gRPC over HTTP, as https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md has it. */
const byGrpc: Wire = {
  protocol: "grpc",
  isBinary: true,
  timeoutOf: ({ headers }, maxMs) => grpc.parseTimeout(single(headers["grpc-timeout"]), maxMs),

  async read(request, maxBytes) {
    const announcedIn = (begin: Buffer) => (begin.length < envelopeBytes ? 0 : begin.readUInt32BE(1));
    const body = await bodyOf(request, maxBytes, { around: envelopeBytes, announcedIn });
    if (body.length === 0) throw notOneMessage("it has none");
    const length = body.length < envelopeBytes ? Number.POSITIVE_INFINITY : body.readUInt32BE(1);
    if (body.length < envelopeBytes + length) throw notOneMessage("it ends in the middle of one");
    if (body.length > envelopeBytes + length) throw notOneMessage("it has more than one");
    if (body[0] !== 0) throw notOneMessage("it is compressed, and no grpc-encoding says how");
    return body.subarray(envelopeBytes);
  },

  answer({ request: { headers }, response, signal }, { acceptCompression, compressMinBytes }) {
    const compression = chosen(acceptCompression, headers["grpc-accept-encoding"]);

    function begin(): void {
      if (response.headersSent) return;
      const encoding = compression && { "grpc-encoding": compression.name };
      response.writeHead(200, { "content-type": grpc.contentTypeProto, ...encoding });
    }

    async function envelope(message: Uint8Array): Promise<Buffer> {
      const isPacked = compression !== null && message.length >= compressMinBytes;
      const data = isPacked ? await compression.compress(message) : message;
      const bytes = Buffer.allocUnsafe(envelopeBytes + data.length);
      bytes.writeUInt8(isPacked ? compressedFlag : 0);
      bytes.writeUInt32BE(data.length, 1);
      bytes.set(data, envelopeBytes);
      return bytes;
    }

    return {
      async send(message) {
        const bytes = await envelope(message);
        begin();
        if (!response.write(bytes) && !signal.aborted) await roomIn(response);
      },
      async end(message) {
        const bytes = message && (await envelope(message));
        begin();
        response.addTrailers({ "grpc-status": grpc.grpcStatusOk });
        if (bytes) response.end(bytes);
        else response.end();
      },
      fail(error) {
        begin();
        response.addTrailers(Object.fromEntries(grpc.setTrailerStatus(new Headers(), error)));
        response.end();
      },
    };
  },
};

/** What comes before each message of gRPC: a byte of flags, and its length in four. */
const envelopeBytes = 5;

const byConnect = unaryByConnect(true);
const byConnectInJson = unaryByConnect(false);

/** A unary rpc, as https://connectrpc.com/docs/protocol has it. */
function unaryByConnect(isBinary: boolean): Wire {
  const type = isBinary ? connect.contentTypeUnaryProto : connect.contentTypeUnaryJson;
  return {
    protocol: "connect",
    isBinary,
    timeoutOf: ({ headers }, maxMs) => connect.parseTimeout(single(headers["connect-timeout-ms"]), maxMs),
    read: (request, maxBytes) => bodyOf(request, maxBytes),

    answer({ request: { headers }, response }, { acceptCompression, compressMinBytes }) {
      function sendWhole(status: number, headers: Record<string, string>, body: Uint8Array): void {
        response.writeHead(status, { ...headers, "content-length": String(body.length) });
        response.end(body);
      }
      return {
        send: () => Promise.reject(new Error("a unary rpc has one answer")),
        async end(message = new Uint8Array()) {
          const accepted = message.length < compressMinBytes ? undefined : headers["accept-encoding"];
          const compression = chosen(acceptCompression, accepted);
          if (compression === null) return sendWhole(200, { "content-type": type }, message);
          const packed = await compression.compress(message);
          sendWhole(200, { "content-type": type, "content-encoding": compression.name }, packed);
        },
        fail(error) {
          const status = connect.codeToHttpStatus(error.code);
          const body = connect.errorToJsonBytes(error, undefined);
          sendWhole(status, { "content-type": connect.contentTypeUnaryJson }, body);
        },
      };
    },
  };
}

/** The whole of a body: a message and what is around it. One that is too large is refused as soon as that is known. */
function bodyOf(
  request: Request,
  maxBytes: number,
  { around = 0, announcedIn = () => 0 }: { around?: number; announcedIn?: (begin: Buffer) => number } = {},
): Promise<Buffer> {
  return new Promise((resolve, reject) => {
    const most = maxBytes + around;
    if (Number(request.headers["content-length"] ?? 0) > most) return reject(requestTooLarge(maxBytes));
    const chunks: Buffer[] = [];
    let size = 0;
    const take = (chunk: Buffer) => {
      const announced = size === 0 ? announcedIn(chunk) : 0;
      size += chunk.length;
      chunks.push(chunk);
      if (size > most || announced > maxBytes) stop(() => reject(requestTooLarge(maxBytes)));
    };
    const end = () => stop(() => resolve(chunks.length === 1 && chunks[0] ? chunks[0] : Buffer.concat(chunks)));
    const leave = () => stop(() => reject(clientLeft()));
    // What is left of it stays unread, for the connection to deal with.
    const stop = (settle: () => void) => {
      request.off("data", take).off("end", end).off("error", leave).off("close", leave).pause();
      settle();
    };
    request.on("data", take).on("end", end).on("error", leave).on("close", leave);
  });
}

function chosen(available: Compression[], accepted: string | readonly string[] | undefined): Compression | null {
  return accepted === undefined ? null : compressionNegotiate(available, null, String(accepted), "").response;
}

const isPacked = (encoding: string | readonly string[] | undefined) =>
  encoding !== undefined && encoding !== "identity";

/** A header's value as Connect's functions take it. */
const single = (value: string | readonly string[] | undefined) => (value === undefined ? null : String(value));

/** Resolves when there is room to write again, or nobody to read. */
function roomIn(response: Sink): Promise<void> {
  return new Promise((resolve) => {
    const done = () => {
      response.off("drain", done).off("error", done).off("close", done);
      resolve();
    };
    response.on("drain", done).on("error", done).on("close", done);
  });
}
