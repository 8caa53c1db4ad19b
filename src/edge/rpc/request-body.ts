import { clientLeft, requestTooLarge } from "../api/request-failure.ts";
import type { Request } from "../http/handler.ts";

/**
 * Reads the body of a request: a message of up to `maxBytes` and its envelope. A body that is too large is refused as soon as
 * its announced or its actual size shows it; `announcedIn` reads the size from the first chunk.
 */
export function readBody(
  request: Request,
  maxBytes: number,
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
      size += chunk.length;
      chunks.push(chunk);
      if (size > maxBodyBytes || announced > maxBytes) stop(() => reject(requestTooLarge(maxBytes)));
    };
    const end = () => stop(() => resolve(chunks.length === 1 && chunks[0] ? chunks[0] : Buffer.concat(chunks)));
    const leave = () => stop(() => reject(clientLeft()));
    // The connection discards the unread rest.
    const stop = (settle: () => void) => {
      request.off("data", take).off("end", end).off("error", leave).off("close", leave).pause();
      settle();
    };
    request.on("data", take).on("end", end).on("error", leave).on("close", leave);
  });
}
