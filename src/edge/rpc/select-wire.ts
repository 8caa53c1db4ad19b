import type { ConnectError } from "@connectrpc/connect";
import type { Compression } from "@connectrpc/connect/protocol";
import {
  codeToHttpStatus,
  contentTypeStreamJson,
  contentTypeStreamProto,
  contentTypeUnaryJson,
  contentTypeUnaryProto,
  createEndStreamSerialization,
  endStreamFlag,
  errorToJsonBytes,
  parseTimeout,
} from "@connectrpc/connect/protocol-connect";
import {
  contentTypeJson,
  contentTypeProto,
  grpcStatusOk,
  parseTimeout as parseGrpcTimeout,
  setTrailerStatus,
} from "@connectrpc/connect/protocol-grpc";
import type { Request } from "../http/handler.ts";
import { readBody } from "./request-body.ts";
import {
  announcedBytes,
  createEnvelopeSender,
  envelope,
  envelopeBytes,
  headerValue,
  negotiateCompression,
  type SingleWire,
  type StreamWire,
  singleMessage,
  withFlags,
} from "./wire.ts";

/** Returns the wire of an uncompressed request by gRPC or by unary Connect; undefined for any other form. */
export function selectWire({ method, headers }: Request, kind: "unary" | "server_streaming"): SingleWire | undefined {
  if (method !== "POST") return undefined;
  if (isCompressed(headers["grpc-encoding"]) || isCompressed(headers["content-encoding"])) return undefined;
  const type = headers["content-type"];
  if (type === "application/grpc" || type === "application/grpc+proto") return grpcProtoWire;
  if (type === "application/proto" && kind === "unary") return connectProtoWire;
  if (type === "application/json" && kind === "unary") return connectJsonWire;
  return undefined;
}

/** Returns the wire of a stream in both directions, which needs HTTP/2; undefined for a form that the router serves or refuses. */
export function selectStreamWire(
  { method, headers, httpVersionMajor }: Request,
  available: readonly Compression[],
): StreamWire | undefined {
  if (method !== "POST" || httpVersionMajor < 2 || isCompressed(headers["content-encoding"])) return undefined;
  const wire = streamWires[headers["content-type"] ?? ""];
  const encoding = wire && headers[wire.encodingHeader];
  return isCompressed(encoding) && !available.some(({ name }) => name === encoding) ? undefined : wire;
}

function isCompressed(encoding: string | readonly string[] | undefined): boolean {
  return encoding !== undefined && encoding !== "identity";
}

/** Streams by Connect with binary messages. */
const connectStreamProtoWire: StreamWire = streamWire(true);

/** Streams by Connect with JSON messages. */
const connectStreamJsonWire: StreamWire = streamWire(false);

/** Creates the wire of streams, as https://connectrpc.com/docs/protocol specifies it. */
function streamWire(isBinary: boolean): StreamWire {
  const type = isBinary ? contentTypeStreamProto : contentTypeStreamJson;
  return {
    isBinary,
    encodingHeader: "connect-content-encoding",
    timeoutOf: ({ headers }, maxMs) => parseTimeout(headerValue(headers["connect-timeout-ms"]), maxMs),

    respond({ request: { headers }, response, signal, metadata }, { compression: offered, jsonOptions }) {
      const { acceptCompression, compressMinBytes } = offered;
      const compression = negotiateCompression(acceptCompression, headers["connect-accept-encoding"]);
      const endStream = createEndStreamSerialization(jsonOptions);

      function sendHeaders(): void {
        if (response.headersSent) return;
        const encoding = compression && { "connect-content-encoding": compression.name };
        response.writeHead(200, { ...metadata.headerFields(), "content-type": type, ...encoding });
      }

      /** Ends the stream with Connect's last message, which holds the trailers. */
      function finish(error?: ConnectError): void {
        sendHeaders();
        const trailers = new Headers(metadata.trailerFields());
        response.end(withFlags(endStreamFlag, endStream.serialize({ metadata: trailers, ...(error && { error }) })));
      }

      const send = createEnvelopeSender(response, { compression, compressMinBytes, signal, sendHeaders });
      return {
        send,
        async end(message) {
          if (message) await send(message);
          finish();
        },
        fail: finish,
      };
    },
  };
}

/** Unary rpcs by Connect with binary messages. */
const connectProtoWire: SingleWire = unaryWire(true);

/** Unary rpcs by Connect with JSON messages. */
const connectJsonWire: SingleWire = unaryWire(false);

/** Creates the wire of unary rpcs, as https://connectrpc.com/docs/protocol specifies it. */
function unaryWire(isBinary: boolean): SingleWire {
  const type = isBinary ? contentTypeUnaryProto : contentTypeUnaryJson;
  return {
    isBinary,
    timeoutOf: ({ headers }, maxMs) => parseTimeout(headerValue(headers["connect-timeout-ms"]), maxMs),
    read: (request, limits) => readBody(request, limits),

    respond({ request: { headers }, response, metadata }, { compression: offered, jsonOptions }) {
      const { acceptCompression, compressMinBytes } = offered;
      function sendWhole(status: number, headers: Record<string, string>, body: Uint8Array): void {
        const added = { ...metadata.headerFields(), ...metadata.trailerFields("trailer-") };
        response.writeHead(status, { ...added, ...headers, "content-length": String(body.length) });
        response.end(body);
      }
      return {
        send: () => Promise.reject(new Error("a unary rpc has one response message")),
        async end(message = new Uint8Array()) {
          const accepted = message.length < compressMinBytes ? undefined : headers["accept-encoding"];
          const compression = negotiateCompression(acceptCompression, accepted);
          if (compression === null) return sendWhole(200, { "content-type": type }, message);
          const compressed = await compression.compress(message);
          sendWhole(200, { "content-type": type, "content-encoding": compression.name }, compressed);
        },
        fail(error) {
          const status = codeToHttpStatus(error.code);
          sendWhole(status, { "content-type": contentTypeUnaryJson }, errorToJsonBytes(error, jsonOptions));
        },
      };
    },
  };
}

/** gRPC with binary messages. */
const grpcProtoWire = grpcWire(true);

/** gRPC with JSON messages. */
const grpcJsonWire = grpcWire(false);

/** Creates the wire of gRPC, as https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md specifies it. */
function grpcWire(isBinary: boolean): SingleWire & StreamWire {
  const type = isBinary ? contentTypeProto : contentTypeJson;
  return {
    isBinary,
    encodingHeader: "grpc-encoding",
    timeoutOf: ({ headers }, maxMs) => parseGrpcTimeout(headerValue(headers["grpc-timeout"]), maxMs),

    async read(request, limits) {
      const body = await readBody(request, limits, { envelopeBytes, announcedIn: announcedBytes });
      return singleMessage(body, false).message;
    },

    respond({ request: { headers }, response, signal, metadata }, { compression: offered }) {
      const { acceptCompression, compressMinBytes } = offered;
      const compression = negotiateCompression(acceptCompression, headers["grpc-accept-encoding"]);
      const options = { compression, compressMinBytes };

      function sendHeaders(): void {
        if (response.headersSent) return;
        const encoding = compression && { "grpc-encoding": compression.name };
        response.writeHead(200, { ...metadata.headerFields(), "content-type": type, ...encoding });
      }

      return {
        send: createEnvelopeSender(response, { ...options, signal, sendHeaders }),
        async end(message) {
          const bytes = message && (await envelope(message, options));
          sendHeaders();
          response.addTrailers({ ...metadata.trailerFields(), "grpc-status": grpcStatusOk });
          if (bytes) response.end(bytes);
          else response.end();
        },
        fail(error) {
          sendHeaders();
          response.addTrailers({
            ...metadata.trailerFields(),
            ...Object.fromEntries(setTrailerStatus(new Headers(), error)),
          });
          response.end();
        },
      };
    },
  };
}

const streamWires: Readonly<Record<string, StreamWire>> = {
  "application/grpc": grpcProtoWire,
  "application/grpc+proto": grpcProtoWire,
  "application/grpc+json": grpcJsonWire,
  "application/connect+proto": connectStreamProtoWire,
  "application/connect+json": connectStreamJsonWire,
};
