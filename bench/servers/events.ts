/** The floor of a stream of events: node:http sends the body of each POST, as it is, to all clients that wait, in memory. */
import { createServer, type ServerResponse } from "node:http";
import { text } from "node:stream/consumers";
import { announce } from "./announce.ts";

const waiting = new Set<ServerResponse>();
const server = createServer(async (request, response) => {
  if (request.method === "GET") {
    response.writeHead(200, { "content-type": "text/event-stream" });
    response.write(": connected\n\n");
    waiting.add(response);
    response.once("close", () => waiting.delete(response));
    return;
  }
  const events = await text(request);
  for (const each of waiting) each.write(events);
  response.end();
});
announce(server);
