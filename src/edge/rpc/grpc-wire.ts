import { type Compression, compressedFlag } from "@connectrpc/connect/protocol";
import { contentTypeProto, grpcStatusOk, parseTimeout, setTrailerStatus } from "@connectrpc/connect/protocol-grpc";
import { readBody } from "./request-body.ts";
import { announcedBytes, envelopeBytes, singleMessage } from "./single-message.ts";
import { headerValue, negotiateCompression, type Sink, type Wire } from "./wire.ts";

/** gRPC over HTTP, as https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md specifies it. */
export const grpcWire: Wire = {
  isBinary: true,
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
      response.writeHead(200, { ...metadata.headerFields(), "content-type": contentTypeProto, ...encoding });
    }

    return {
      async send(message) {
        const bytes = await envelope(message, options);
        sendHeaders();
        if (!response.write(bytes) && !signal.aborted) await drained(response);
      },
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

async function envelope(
  message: Uint8Array,
  { compression, compressMinBytes }: { compression: Compression | null; compressMinBytes: number },
): Promise<Buffer> {
  const isCompressed = compression !== null && message.length >= compressMinBytes;
  const data = isCompressed ? await compression.compress(message) : message;
  const bytes = Buffer.allocUnsafe(envelopeBytes + data.length);
  bytes.writeUInt8(isCompressed ? compressedFlag : 0);
  bytes.writeUInt32BE(data.length, 1);
  bytes.set(data, envelopeBytes);
  return bytes;
}

/** Resolves when the response can be written to again, or will never be. */
function drained(response: Sink): Promise<void> {
  return new Promise((resolve) => {
    const done = () => {
      response.off("drain", done).off("error", done).off("close", done);
      resolve();
    };
    response.on("drain", done).on("error", done).on("close", done);
  });
}
