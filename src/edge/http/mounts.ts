import { notServed } from "../api/request-failure.ts";
import type { Handler, Refuse, Response } from "./handler.ts";

/** A place on the listener that a handler serves. */
export interface Mount {
  /** Path without query; one that ends in `/` covers everything below it, except for `/` itself, which is the root only. */
  path: string;
  /** Methods that are served; absent: all. */
  methods?: readonly string[];
  handle: Handler;
}

/** Creates a handler that dispatches by path; it refuses with 404 where nothing is mounted. */
export function dispatch(mounts: readonly Mount[], refuse: Refuse): Handler {
  const exact = new Map(mounts.map((mount) => [mount.path, mount]));
  const prefixes = mounts.filter(({ path }) => path.endsWith("/") && path !== "/");
  return (request, response) => {
    const [path = ""] = (request.url ?? "").split("?", 1);
    const mount = exact.get(path) ?? prefixes.find((prefix) => path.startsWith(prefix.path));
    const isServed = mount !== undefined && (mount.methods?.includes(request.method ?? "") ?? true);
    if (isServed) mount.handle(request, response);
    else refuse(notServed("unimplemented", `${request.method} ${path} is not served here`), request, response, 404);
  };
}

/** Sends a whole response. */
export function sendWhole(response: Response, status: number, type: string, body: string | Uint8Array): void {
  response.statusCode = status;
  response.setHeader("content-type", type);
  response.end(body);
}
