import type { EventEmitter } from "node:events";
import { type ConnectRouter, type ConnectRouterOptions, createConnectRouter } from "@connectrpc/connect";
import type { UniversalHandler, UniversalServerResponse } from "@connectrpc/connect/protocol";
import { compressionBrotli, compressionGzip } from "@connectrpc/connect-node";
import type { Logger } from "../log.ts";
import { clientLeft } from "./errors.ts";
import type { Handler, Request, Response } from "./sockets.ts";

/**
 * Answers requests of node's servers by Connect's router, as `connectNodeAdapter` does, for less: no generators around the
 * bytes of a body, the whole of a unary answer in one go, and an abort only for who leaves before the answer has ended.
 */
export function createRpcHandler({
  routes,
  log,
  ...options
}: ConnectRouterOptions & { routes: (router: ConnectRouter) => void; log: Logger }): Handler {
  const router = createConnectRouter({ acceptCompression: [compressionGzip, compressionBrotli], ...options });
  routes(router);
  const handlers = new Map(router.handlers.map((handler) => [handler.requestPath, handler]));

  async function serve(handler: UniversalHandler, request: Request, response: Response): Promise<void> {
    const leaving = new AbortController();
    response.once("close", () => {
      if (!response.writableEnded) leaving.abort(clientLeft());
    });
    try {
      const answer = await handler({
        httpVersion: request.httpVersion,
        method: request.method ?? "",
        // Only path and query are looked at, so nothing that the request says of its host is parsed again.
        url: `http://toolgate${request.url}`,
        header: webHeaders(request),
        body: { [Symbol.asyncIterator]: () => ({ next: () => nextBytes(request) }) },
        signal: leaving.signal,
      });
      if (handler.method.methodKind === "unary") await sendWhole(answer, response, leaving.signal);
      else await stream(answer, response, leaving.signal);
    } catch (error) {
      if (!leaving.signal.aborted) log.error("an answer broke off", { error, rpc: handler.requestPath });
      response.destroy();
    }
  }

  return (request, response) => {
    const [path = ""] = (request.url ?? "").split("?", 1);
    const handler = handlers.get(path);
    if (handler !== undefined) return void serve(handler, request, response);
    response.statusCode = 404;
    response.end();
  };
}

/** What an answer is written to, of either version of HTTP. */
interface Sink extends EventEmitter {
  writeHead(status: number, headers: Record<string, string>): unknown;
  write(chunk: Uint8Array): boolean;
  addTrailers(trailers: Record<string, string>): void;
  end(): unknown;
}

/** The next of a request's body. What is not asked for stays unread, for the connection to deal with. */
async function nextBytes(request: Request): Promise<IteratorResult<Uint8Array, undefined>> {
  for (;;) {
    const value: Uint8Array | null = request.read();
    if (value !== null) return { done: false, value };
    if (request.readableEnded) return { done: true, value: undefined };
    if (request.destroyed) throw clientLeft();
    await changed(request, "readable", "end");
  }
}

/** Headers and trailers are complete when the body is, so all of a unary answer goes out together. */
async function sendWhole(answer: UniversalServerResponse, response: Sink, leaving: AbortSignal): Promise<void> {
  const chunks: Uint8Array[] = [];
  for await (const chunk of answer.body ?? []) chunks.push(chunk);
  if (leaving.aborted) return;
  response.writeHead(answer.status, nodeHeaders(answer.header));
  for (const chunk of chunks) response.write(chunk);
  if (answer.trailer !== undefined) response.addTrailers(nodeHeaders(answer.trailer));
  response.end();
}

/** Each chunk goes out as it comes; the next one is asked for when the client has taken enough of those before. */
async function stream(answer: UniversalServerResponse, response: Sink, leaving: AbortSignal): Promise<void> {
  let begun = false;
  const begin = () => {
    if (!begun) response.writeHead(answer.status, nodeHeaders(answer.header));
    begun = true;
  };
  for await (const chunk of answer.body ?? []) {
    if (leaving.aborted) return;
    begin();
    if (!response.write(chunk)) await changed(response, "drain");
  }
  if (leaving.aborted) return;
  begin();
  if (answer.trailer !== undefined) response.addTrailers(nodeHeaders(answer.trailer));
  response.end();
}

/** Resolves when one of the events comes, or none can any more. */
function changed(source: EventEmitter, ...events: string[]): Promise<void> {
  const awaited = [...events, "error", "close"];
  return new Promise((resolve) => {
    const done = () => {
      for (const event of awaited) source.off(event, done);
      resolve();
    };
    for (const event of awaited) source.on(event, done);
  });
}

function webHeaders({ headers }: Request): Headers {
  const web = new Headers();
  for (const [name, value] of Object.entries(headers)) {
    if (value === undefined || name.startsWith(":")) continue;
    for (const each of typeof value === "string" ? [value] : value) web.append(name, each);
  }
  return web;
}

function nodeHeaders(headers: UniversalServerResponse["header"]): Record<string, string> {
  return Object.fromEntries(new Headers(headers));
}
