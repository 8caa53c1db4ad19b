import { notServed } from "../api/request-failure.ts";
import type { Handler, Refuse, Request, Response } from "./handler.ts";

/** A place on the listener that a handler serves. */
export interface Mount {
  /** Path without query; one that ends in `/` covers everything below it, except for `/` itself, which is the root only. */
  path: string;
  /** Methods that are served; absent: all. */
  methods?: readonly string[];
  /** Serves only requests whose header accept names this media type, and leaves the others to another mount of the path. */
  accept?: string;
  handle: Handler;
}

/**
 * Creates a handler that dispatches by path, method and media type; it refuses with 404 where nothing is mounted. Throws if two
 * mounts take the same requests: one of two doors would answer nothing, unnoticed.
 */
export function dispatch(mounts: readonly Mount[], refuse: Refuse): Handler {
  for (const [index, mount] of mounts.entries()) checkAlone(mount, mounts.slice(0, index));
  // Of the mounts of one path, those for a media type come first, since the others serve every request.
  const exact = Map.groupBy(
    mounts.toSorted((a, b) => Number(a.accept === undefined) - Number(b.accept === undefined)),
    ({ path }) => path,
  );
  const prefixes = [...exact.keys()]
    .filter((path) => path.endsWith("/") && path !== "/")
    .sort((a, b) => b.length - a.length);
  return (request, response) => {
    const [path = ""] = (request.url ?? "").split("?", 1);
    const prefix = () => prefixes.find((start) => path.startsWith(start)) ?? "";
    const mount = (exact.get(path) ?? exact.get(prefix()))?.find((each) => serves(each, request));
    if (mount !== undefined) mount.handle(request, response);
    else refuse(notServed("unimplemented", `${request.method} ${path} is not served here`), request, response, 404);
  };
}

function serves({ methods, accept }: Mount, { method = "", headers }: Request): boolean {
  return (methods?.includes(method) ?? true) && (accept === undefined || (headers.accept?.includes(accept) ?? false));
}

/** Throws if another mount takes requests of this one. One for a media type may share methods with one for all others. */
function checkAlone({ path, methods, accept }: Mount, others: readonly Mount[]): void {
  for (const other of others) {
    if (other.path !== path || other.accept !== accept) continue;
    const shared =
      methods === undefined
        ? (other.methods ?? ["every method"])
        : methods.filter((name) => other.methods?.includes(name) ?? true);
    if (shared.length === 0) continue;
    throw new Error(
      `two doors serve ${shared.join(", ")} of ${path}, so that one is never reached; give one of the mounts other methods or another path`,
    );
  }
}

/** Sends a whole response. */
export function sendWhole(response: Response, status: number, type: string, body: string | Uint8Array): void {
  response.statusCode = status;
  response.setHeader("content-type", type);
  response.end(body);
}
