import { once } from "node:events";
import { createServer, type IncomingHttpHeaders } from "node:http";
import type { AddressInfo } from "node:net";
import { onTestFinished } from "vitest";

/** A request that a provider got. */
export interface Received {
  headers: IncomingHttpHeaders;
  body: string;
}

/** Status and headers of an answer; status 0: none is ever sent. */
export type ProviderAnswer = readonly [status: number, headers?: Record<string, string>];

/** Starts a provider on this machine; it answers each request with the next answer, and at last always with the last one. */
export async function startProvider(answers: readonly ProviderAnswer[] = [[204]]) {
  const received: Received[] = [];
  const server = createServer((request, response) => {
    const chunks: Buffer[] = [];
    request.on("data", (chunk: Buffer) => chunks.push(chunk));
    request.on("end", () => {
      const [status, extra] = answers[Math.min(received.length, answers.length - 1)] ?? [204];
      received.push({ headers: request.headers, body: Buffer.concat(chunks).toString() });
      if (status > 0) response.writeHead(status, extra).end();
    });
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  onTestFinished(() => void server.close());
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/hook`, received };
}
