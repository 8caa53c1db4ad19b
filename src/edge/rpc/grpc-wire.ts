import {
  contentTypeJson,
  contentTypeProto,
  grpcStatusOk,
  parseTimeout,
  setTrailerStatus,
} from "@connectrpc/connect/protocol-grpc";
import { createEnvelopeSender, envelope, envelopeBytes } from "./envelope.ts";
import { readBody } from "./request-body.ts";
import { announcedBytes, singleMessage } from "./single-message.ts";
import { headerValue, negotiateCompression, type SingleWire, type StreamWire } from "./wire.ts";

/** gRPC with binary messages. */
export const grpcProtoWire = grpcWire(true);

/** gRPC with JSON messages. */
export const grpcJsonWire = grpcWire(false);

/** Creates the wire of gRPC, as https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md specifies it. */
function grpcWire(isBinary: boolean): SingleWire & StreamWire {
  const type = isBinary ? contentTypeProto : contentTypeJson;
  return {
    isBinary,
    encodingHeader: "grpc-encoding",
    timeoutOf: ({ headers }, maxMs) => parseTimeout(headerValue(headers["grpc-timeout"]), maxMs),

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
