/** The floor of streams in both directions: node:http2 sends each chunk of bytes back, without decoding it. */
import { createServer } from "node:http2";
import { announce } from "./announce.ts";

const server = createServer();
server.on("stream", (stream) => {
  // A client that leaves must not end the server.
  stream.on("error", () => undefined);
  stream.respond({ ":status": 200, "content-type": "application/grpc+proto" });
  stream.on("data", (chunk: Buffer) => stream.write(chunk));
});
announce(server);
