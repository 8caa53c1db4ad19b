import { once } from "node:events";
import { request as http1Request } from "node:http";
import { connect } from "node:http2";
import { setImmediate } from "node:timers/promises";
import { expect, test } from "vitest";
import { startServer } from "./server.ts";

const types = ["application/grpc", "application/grpc-web+proto", "application/connect+proto"] as const;
const clients = 8;
const path = "/opencode.tool.v1.ToolService/WatchSession";
const body = Buffer.from("\0\0\0\0\x07\n\x05ses_1", "latin1");

/** Reads the beginning of a stream, and cuts the connection. */
const leave = {
  "HTTP/2": async (url: string, type: string) => {
    const session = connect(url);
    const headers = { ":method": "POST", ":path": path, "content-type": type, te: "trailers" };
    const stream = session.request({ ...headers, authorization: "Bearer caller-token" });
    stream.on("error", () => undefined);
    stream.end(body);
    await once(stream, "data");
    session.destroy();
  },
  "HTTP/1.1": async (url: string, type: string) => {
    const headers = { "content-type": type, authorization: "Bearer caller-token" };
    const request = http1Request(`${url}${path}`, { method: "POST", headers });
    request.on("error", () => undefined);
    request.end(body);
    const [response] = await once(request, "response");
    response.on("error", () => undefined);
    await once(response, "data");
    request.destroy();
  },
};

/** Starts a server whose stream goes on whether anybody reads it or not; `ended` resolves once those of all clients have ended. */
async function startStreams(atAbort: () => void = () => undefined) {
  const ended = Promise.withResolvers<void>();
  let count = 0;
  const server = await startServer({
    async *watchSession(_, { signal }) {
      try {
        for (;;) {
          yield { storeId: "s".repeat(9_000) };
          await setImmediate();
          if (signal.aborted) atAbort();
        }
      } finally {
        count += 1;
        if (count === clients) ended.resolve();
      }
    },
  });
  return { server, ended: ended.promise };
}

const cases = Object.entries(leave).flatMap(([http, read]) =>
  types.flatMap((type) => (http === "HTTP/1.1" && type === "application/grpc" ? [] : [{ http, type, read }])),
);

test.each(cases)("Q6 clients that leave in the middle of $type over $http are no errors in the log", async (each) => {
  const { server, ended } = await startStreams();
  await Promise.all(Array.from({ length: clients }, () => each.read(server.url, each.type)));
  await ended;
  // The server closes after it has finished with each connection.
  await server.close(60_000);
  expect(await server.logged()).toBe("");
});

test("Q6 control: an error of the service is logged, also when its client has left", async () => {
  const { server, ended } = await startStreams(() => {
    throw new Error("the disk is on fire");
  });
  await Promise.all(Array.from({ length: clients }, () => leave["HTTP/2"](server.url, "application/grpc")));
  await ended;
  await server.close(60_000);
  expect((await server.logged()).match(/rpc failed/g)).toHaveLength(clients);
});
