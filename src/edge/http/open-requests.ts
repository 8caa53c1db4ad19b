import type { Handler, Refuse, Request } from "./handler.ts";

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
