/** The floor: node:http2 sends the request's bytes back as a gRPC answer, without decoding them. */
import { createServer, type ServerHttp2Stream } from "node:http2";
import { announce } from "./announce.ts";

const server = createServer();
server.on("stream", (stream) => {
  // A client that leaves must not end the server.
  stream.on("error", () => undefined);
  const chunks: Buffer[] = [];
  stream.on("data", (chunk: Buffer) => chunks.push(chunk));
  stream.on("end", () => {
    if (!stream.destroyed) answer(stream, Buffer.concat(chunks));
  });
});
announce(server);

function answer(stream: ServerHttp2Stream, body: Buffer): void {
  stream.on("wantTrailers", () => stream.sendTrailers({ "grpc-status": "0" }));
  stream.respond({ ":status": 200, "content-type": "application/grpc+proto" }, { waitForTrailers: true });
  stream.end(body);
}
