import { Agent, type IncomingHttpHeaders, request } from "node:http";

/** Sends a request, POST if it has a body, and reads the whole response. */
export type Exchange = (
  path: string,
  body?: object,
  headers?: Readonly<Record<string, string>>,
) => Promise<{ status: number | undefined; headers: IncomingHttpHeaders; body: string }>;

/** Connects by HTTP/1.1, over connections that stay open; it does as little as a client can. */
export function createHttpClient(url: string): Exchange {
  const agent = new Agent({ keepAlive: true });
  return (path, body, headers = {}) =>
    new Promise((resolve, reject) => {
      const method = body === undefined ? "GET" : "POST";
      const sent = request(new URL(path, url), { method, agent, headers }, (response) => {
        const chunks: Buffer[] = [];
        response.on("data", (chunk: Buffer) => chunks.push(chunk));
        response.on("error", reject);
        response.on("end", () =>
          resolve({ status: response.statusCode, headers: response.headers, body: Buffer.concat(chunks).toString() }),
        );
      });
      sent.on("error", reject);
      sent.end(body === undefined ? undefined : JSON.stringify(body));
    });
}
