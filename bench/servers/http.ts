/** The floor of an HTTP hook: node:http reads the request's JSON and answers with JSON, in memory. */
import { createServer } from "node:http";
import { text } from "node:stream/consumers";
import { announce } from "./announce.ts";

const server = createServer(async (request, response) => {
  const body: unknown = JSON.parse(await text(request));
  response.writeHead(200, { "content-type": "application/json" });
  response.end(JSON.stringify({ isObject: typeof body === "object", permissionDecision: "allow" }));
});
announce(server);
