import {
  codeToHttpStatus,
  contentTypeUnaryJson,
  contentTypeUnaryProto,
  errorToJsonBytes,
  parseTimeout,
} from "@connectrpc/connect/protocol-connect";
import { readBody } from "./request-body.ts";
import { headerValue, negotiateCompression, type SingleWire } from "./wire.ts";

/** Unary rpcs by Connect with binary messages. */
export const connectProtoWire: SingleWire = unaryWire(true);

/** Unary rpcs by Connect with JSON messages. */
export const connectJsonWire: SingleWire = unaryWire(false);

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
