/** Answers GET /CALL once that call waits, with what its answer has to name. */
import { createServer } from "node:http";

const waiting = new Map();

/** Returns what resolves once a call waits. */
export function askedOf(call) {
  const asked = waiting.get(call) ?? Promise.withResolvers();
  waiting.set(call, asked);
  return asked;
}

/** Serves GET, and POST by `answer`, which gets the path and the JSON of the body; prints the URL. */
export function serve(answer) {
  const server = createServer(async (request, response) => {
    try {
      const path = request.url.slice(1);
      const chunks = [];
      for await (const chunk of request) chunks.push(chunk);
      const result =
        request.method === "GET" ? await askedOf(path).promise : await answer(path, JSON.parse(chunks.join("")));
      if (request.method === "GET") waiting.delete(path);
      response.end(JSON.stringify(result));
    } catch (error) {
      response.writeHead(500).end(String(error?.stack ?? error));
    }
  });
  server.keepAliveTimeout = 120_000; // Longer than the pause between two turns, so that connections stay open.
  server.listen(0, "127.0.0.1", () => process.stdout.write(`http://127.0.0.1:${server.address().port}\n`));
  process.once("SIGTERM", () => process.exit());
}
