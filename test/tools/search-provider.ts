import { once } from "node:events";
import { createServer, type IncomingMessage, type RequestListener } from "node:http";
import type { AddressInfo } from "node:net";
import { text } from "node:stream/consumers";
import { onTestFinished } from "vitest";

/** The key that every test configures; no text that a tool or the service prints may hold it. */
export const searchKey = "key-0123456789-for-tests";

/** A request that a provider got. */
export interface SeenRequest {
  method: string;
  url: URL;
  headers: IncomingMessage["headers"];
  /** The body as JSON; undefined without one. */
  body: unknown;
}

/** Starts a server on a free port that stands for a provider; it ends with the test. */
export async function startProvider(answer: RequestListener): Promise<{ url: string; seen: SeenRequest[] }> {
  const seen: SeenRequest[] = [];
  const server = createServer(async (request, response) => {
    const body = await text(request);
    const { method = "", headers } = request;
    const url = new URL(request.url ?? "", "http://provider");
    seen.push({ method, url, headers, body: body === "" ? undefined : JSON.parse(body) });
    answer(request, response);
  }).listen(0, "127.0.0.1");
  await once(server, "listening");
  onTestFinished(() => {
    server.closeAllConnections();
    server.close();
  });
  const { port } = server.address() as AddressInfo;
  return { url: `http://127.0.0.1:${port}`, seen };
}

/** Answers with a JSON value. */
export const answerJson =
  (value: unknown): RequestListener =>
  (_, response) =>
    response.writeHead(200, { "content-type": "application/json" }).end(JSON.stringify(value));

/** Answers with server-sent events, and leaves the stream open unless `ends`. */
export const answerEvents =
  (events: readonly (readonly [event: string, data: unknown])[], { ends = true } = {}): RequestListener =>
  (_, response) => {
    response.writeHead(200, { "content-type": "text/event-stream" });
    for (const [event, data] of events) response.write(`event: ${event}\ndata: ${JSON.stringify(data)}\n\n`);
    if (ends) response.end();
  };

/** Takes the random names out of fences, so that texts can be compared. */
export const unfenced = (output = "") => output.replaceAll(/untrusted-[0-9a-f]{16}/g, "untrusted");
