import { overloaded } from "../api/request-failure.ts";
import type { Handler, Refuse, Request } from "./handler.ts";

/**
 * Creates the cap on open requests without a token: it refuses one more of a connection. A request is open until its response is
 * closed, which for HTTP/2 is the life of its stream.
 */
export function capPublicRequests(
  { maxCount, hasToken, refuse }: { maxCount: number; hasToken: (request: Request) => boolean; refuse: Refuse },
  next: Handler,
): Handler {
  const openCounts = new WeakMap<object, number>();
  return (request, response) => {
    if (hasToken(request)) return next(request, response);
    const connection = ("stream" in request ? request.stream.session : undefined) ?? request.socket;
    const openCount = openCounts.get(connection) ?? 0;
    if (openCount >= maxCount) {
      const fact = `this connection has ${maxCount} open requests without a token`;
      return refuse(overloaded("requests_without_token", fact), request, response);
    }
    openCounts.set(connection, openCount + 1);
    response.once("close", () => openCounts.set(connection, (openCounts.get(connection) ?? 1) - 1));
    next(request, response);
  };
}
