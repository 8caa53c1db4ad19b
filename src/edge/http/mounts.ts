import type { Handler, Request, Response } from "./handler.ts";

/** A place on the listener that a handler serves. */
export interface Mount {
  /** Path without query; one that ends in `/` covers everything below it, except for `/` itself, which is the root only. */
  path: string;
  /** Methods that are served; absent: all. */
  methods?: readonly string[];
  handle: Handler;
}

/** Creates a handler that dispatches by path; it answers 404 where nothing is mounted. */
export function dispatch(mounts: readonly Mount[]): Handler {
  const exact = new Map(mounts.map((mount) => [mount.path, mount]));
  const prefixes = mounts.filter(({ path }) => path.endsWith("/") && path !== "/");
  return (request, response) => {
    const [path = ""] = (request.url ?? "").split("?", 1);
    const mount = exact.get(path) ?? prefixes.find((prefix) => path.startsWith(prefix.path));
    const isServed = mount !== undefined && (mount.methods?.includes(request.method ?? "") ?? true);
    if (isServed) mount.handle(request, response);
    else notFound(request, response);
  };
}

function notFound(_request: Request, response: Response): void {
  response.statusCode = 404;
  response.end();
}

/** Sends a whole response. */
export function sendWhole(response: Response, status: number, type: string, body: string | Uint8Array): void {
  response.statusCode = status;
  response.setHeader("content-type", type);
  response.end(body);
}
