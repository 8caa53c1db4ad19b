import { Code, ConnectError } from "@connectrpc/connect";
import { type Compression, compressedFlag } from "@connectrpc/connect/protocol";
import { messageTooLarge, unreadableStream } from "../api/request-failure.ts";
import type { BodyChunks } from "./body-chunks.ts";
import { EnvelopeParser } from "./envelope-parser.ts";
import type { BodyLimits } from "./request-body.ts";

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
export async function* readMessages<T>(
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
