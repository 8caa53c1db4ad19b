import { bodyTimedOut, clientLeft, requestTooLarge } from "../api/request-failure.ts";
import type { EdgeLimits } from "../api/rpc.ts";
import type { Request } from "../http/handler.ts";
import type { ByteBudget } from "../http/socket-limits.ts";

/** Bounds on the body of a request. */
export interface BodyLimits {
  /** Maximum size of the message, or of all messages of a stream. */
  maxBytes: number;
  /** Time in which the body must arrive. */
  maxMs: number;
  /** Budget from which the body takes its bytes until it has arrived. */
  budget: ByteBudget;
}

/** Returns the bounds on the body of a request with one message; those of rpcs that need no token are narrower. */
export function bodyLimits(
  { limits, budget }: { limits: EdgeLimits; budget: ByteBudget },
  isPublic = false,
): BodyLimits {
  return { maxBytes: isPublic ? limits.publicRequestBytes : limits.requestBytes, maxMs: limits.bodyMs, budget };
}

/**
 * Reads the body of a request: a message and its envelope. A body that is too large is refused as soon as its announced or its
 * actual size shows it; `announcedIn` reads the size from the first chunk.
 */
export function readBody(
  request: Request,
  { maxBytes, maxMs, budget }: BodyLimits,
  {
    envelopeBytes = 0,
    announcedIn = () => 0,
  }: { envelopeBytes?: number; announcedIn?: (begin: Buffer) => number } = {},
): Promise<Buffer> {
  return new Promise((resolve, reject) => {
    const maxBodyBytes = maxBytes + envelopeBytes;
    if (Number(request.headers["content-length"] ?? 0) > maxBodyBytes) return reject(requestTooLarge(maxBytes));
    const chunks: Buffer[] = [];
    let size = 0;
    const take = (chunk: Buffer) => {
      const announced = size === 0 ? announcedIn(chunk) : 0;
      if (size + chunk.length > maxBodyBytes || announced > maxBytes) return refuse(requestTooLarge(maxBytes));
      try {
        budget.reserve(chunk.length);
      } catch (error) {
        return refuse(error);
      }
      size += chunk.length;
      chunks.push(chunk);
    };
    const end = () => stop(() => resolve(chunks.length === 1 && chunks[0] ? chunks[0] : Buffer.concat(chunks)));
    const leave = () => refuse(clientLeft());
    const refuse = (error: unknown) => stop(() => reject(error));
    // The connection discards the unread rest.
    const stop = (settle: () => void) => {
      clearTimeout(timer);
      budget.release(size);
      request.off("data", take).off("end", end).off("error", leave).off("close", leave).pause();
      settle();
    };
    const timer = setTimeout(() => refuse(bodyTimedOut(maxMs)), maxMs);
    request.on("data", take).on("end", end).on("error", leave).on("close", leave);
  });
}

/**
 * Passes the body of a request on in chunks, within the same bounds. A consumer that stops early leaves the connection open, so
 * that the refusal reaches the client.
 */
export async function* streamBody(
  request: Request,
  { maxBytes, maxMs, budget }: BodyLimits,
): AsyncGenerator<Uint8Array, void> {
  const expired = Promise.withResolvers<never>();
  expired.promise.catch(() => undefined);
  const timer = setTimeout(() => expired.reject(bodyTimedOut(maxMs)), maxMs);
  const chunks: AsyncIterator<Buffer> = request.iterator({ destroyOnReturn: false });
  let size = 0;
  let reserved = 0;
  let isReleased = false;
  const release = () => {
    if (isReleased) return;
    isReleased = true;
    clearTimeout(timer);
    budget.release(reserved);
  };
  // A consumer that stops without a word, such as one whose client left, must not hold the bytes.
  request.once("close", release);
  try {
    for (;;) {
      const next = await Promise.race([chunks.next(), expired.promise]);
      if (next.done === true) return;
      size += next.value.length;
      if (size > maxBytes) throw requestTooLarge(maxBytes);
      if (!isReleased) {
        budget.reserve(next.value.length);
        reserved += next.value.length;
      }
      yield next.value;
    }
  } finally {
    release();
    // The rest is discarded: the next request on an HTTP/1.1 connection waits behind it.
    const left = chunks.return?.() ?? Promise.resolve();
    left.catch(() => undefined).then(() => request.resume());
  }
}
