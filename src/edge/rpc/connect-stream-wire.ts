import type { ConnectError } from "@connectrpc/connect";
import {
  contentTypeStreamJson,
  contentTypeStreamProto,
  createEndStreamSerialization,
  endStreamFlag,
  parseTimeout,
} from "@connectrpc/connect/protocol-connect";
import { createEnvelopeSender, withFlags } from "./envelope.ts";
import { headerValue, negotiateCompression, type StreamWire } from "./wire.ts";

/** Streams by Connect with binary messages. */
export const connectStreamProtoWire: StreamWire = streamWire(true);

/** Streams by Connect with JSON messages. */
export const connectStreamJsonWire: StreamWire = streamWire(false);

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
