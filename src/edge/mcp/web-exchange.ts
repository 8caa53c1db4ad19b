import { once } from "node:events";
import { isBroken, type Request as NodeRequest, type Response as NodeResponse } from "../http/handler.ts";

/** Returns a request in the form of the web's fetch. */
export function webRequestOf(
  { headers, method = "GET", url = "/" }: NodeRequest,
  body: Buffer | undefined,
  signal: AbortSignal,
): Request {
  const fields = Object.entries(headers).flatMap(([name, value]): [string, string][] =>
    name.startsWith(":") || value === undefined ? [] : [[name, Array.isArray(value) ? value.join(", ") : value]],
  );
  const init = { method, headers: fields, signal, ...(body !== undefined && { body }) };
  return new Request(new URL(url, "http://localhost"), init as RequestInit);
}

/** Returns a body as JSON; undefined if it is not JSON. */
export function jsonIn(body: Buffer | undefined): unknown {
  if (body === undefined) return undefined;
  try {
    return JSON.parse(body.toString());
  } catch {
    return undefined;
  }
}

/** Sends a response of the web's fetch. It reads the body as fast as the client takes it, and cancels it when the client leaves. */
export async function sendWebResponse({ status, headers, body }: Response, response: NodeResponse): Promise<void> {
  response.statusCode = status;
  for (const [name, value] of headers)
    if (name !== "connection" && name !== "cache-control") response.setHeader(name, value);
  if (body === null) {
    response.end();
    return;
  }
  // Some clients wait a minute for the head, and for longer only for the body. The types of HTTP/2 lack the function.
  if ("flushHeaders" in response) response.flushHeaders();
  const reader = body.getReader();
  const cancel = () => void reader.cancel().catch(() => undefined);
  response.once("close", cancel);
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    if (isBroken(response)) return;
    if (!writeChunk(response, value)) await Promise.race([once(response, "drain"), once(response, "close")]);
  }
  response.off("close", cancel);
  response.end();
}

/** Writes a chunk. Both versions of HTTP do it in the same way, but their types do not share the signature. */
export function writeChunk(response: NodeResponse, chunk: Uint8Array | string): boolean {
  return "stream" in response ? response.write(chunk) : response.write(chunk);
}
