import { constants, type Http2Session, type ServerHttp2Stream } from "node:http2";
import type { Handler, Refuse, Request } from "./handler.ts";
import { resetLimits } from "./socket-limits.ts";

/**
 * Creates a cap on the open requests of one kind: it refuses one more of a connection. A request is open until its response is
 * closed, which for HTTP/2 is the life of its stream.
 */
export function capOpenRequests(
  {
    maxCount,
    counts,
    refusal,
    refuse,
  }: { maxCount: number; counts: (request: Request) => boolean; refusal: () => unknown; refuse: Refuse },
  next: Handler,
): Handler {
  const openCounts = new WeakMap<object, number>();
  return (request, response) => {
    if (!counts(request)) return next(request, response);
    const connection = ("stream" in request ? request.stream.session : undefined) ?? request.socket;
    const openCount = openCounts.get(connection) ?? 0;
    if (openCount >= maxCount) return refuse(refusal(), request, response);
    openCounts.set(connection, openCount + 1);
    response.once("close", () => openCounts.set(connection, (openCounts.get(connection) ?? 1) - 1));
    next(request, response);
  };
}

/** Resets of an HTTP/2 connection. */
interface Resets {
  /** True once a request on the connection had a valid token. */
  hasToken: boolean;
  /** Resets that are still allowed, at a time. */
  left: number;
  at: number;
}

/**
 * Creates a cap on the streams of a connection that its client resets. A connection without a valid token is cut. Otherwise the
 * client is asked to open another one, by GOAWAY without an error, and the requests that are open go on. A stream that was reset
 * before its turn is not served.
 */
export function capResets(hasToken: (request: Request) => boolean, next: Handler): Handler {
  const bySession = new WeakMap<Http2Session, Resets>();
  const limitOf = (resets: Resets) => (resets.hasToken ? resetLimits.withToken : resetLimits.withoutToken);

  function count(session: Http2Session, resets: Resets, { rstCode }: ServerHttp2Stream): void {
    if (rstCode === constants.NGHTTP2_NO_ERROR || session.destroyed) return;
    const { burst, perSecond } = limitOf(resets);
    const now = performance.now();
    const regained = ((now - resets.at) / 1_000) * perSecond;
    Object.assign(resets, { left: Math.min(burst, resets.left + regained) - 1, at: now });
    if (resets.left >= 0) return;
    if (resets.hasToken) session.close();
    else session.destroy();
  }

  return (request, response) => {
    const stream = "stream" in request ? request.stream : undefined;
    const session = stream?.session;
    if (stream === undefined || session === undefined) return next(request, response);
    const resets = bySession.get(session) ?? { hasToken: false, left: resetLimits.withoutToken.burst, at: 0 };
    bySession.set(session, resets);
    if (stream.closed) return count(session, resets, stream);
    if (!resets.hasToken && hasToken(request))
      Object.assign(resets, { hasToken: true, left: resetLimits.withToken.burst });
    stream.once("close", () => count(session, resets, stream));
    next(request, response);
  };
}
