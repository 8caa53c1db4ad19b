import { type Compression, compressedFlag } from "@connectrpc/connect/protocol";
import type { Sink } from "./wire.ts";

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

/** Creates the function that sends the messages of a stream, in order; it waits while the client reads none. */
export function createEnvelopeSender(
  response: Sink,
  { signal, sendHeaders, ...compressing }: Compressing & { signal: AbortSignal; sendHeaders: () => void },
): (message: Uint8Array) => Promise<void> | undefined {
  const write = (bytes: Buffer) => {
    sendHeaders();
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
