import { once } from "node:events";
import { Agent, request as http1Request } from "node:http";
import { connect as http2Connect } from "node:http2";
import { connect } from "node:net";
import { Code, createClient } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";
import { expect, test } from "vitest";
import { Health, HealthCheckResponse_ServingStatus as Status } from "../../gen/grpc/health/v1/health_pb.ts";
import { ServerReflection } from "../../gen/grpc/reflection/v1/reflection_pb.ts";
import { ToolService } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { startServer } from "./server.ts";
import { expectCut, expectDrained, transports } from "./transports.ts";

const minute = 60_000;
test.each(Object.entries(transports))(
  "an open stream over %s ends with DRAINING, and the server closes without cutting it",
  (_name, open) => expectDrained(startServer, open),
);

test("a health watch reports the drain before the stream ends", async () => {
  const server = await startServer();
  const statuses = createClient(Health, createGrpcTransport({ baseUrl: server.url }))
    .watch({})
    [Symbol.asyncIterator]();
  expect((await statuses.next()).value?.status).toBe(Status.SERVING);
  const closed = server.close(minute);
  expect((await statuses.next()).value?.status).toBe(Status.NOT_SERVING);
  await expect(statuses.next()).rejects.toMatchObject({ code: Code.Unavailable });
  await closed;
});

test("connections that are idle, silent or in the middle of a request do not delay the end", async () => {
  const server = await startServer();
  const { port } = new URL(server.url);
  const agent = new Agent({ keepAlive: true });
  const idle = http1Request(`${server.url}/healthz`, { agent }).end();
  (await once(idle, "response"))[0].resume();

  const silent = connect(Number(port), "127.0.0.1").resume();
  const half = connect(Number(port), "127.0.0.1").resume();
  half.write("GET /healthz HTTP/1.1\r\n");

  // Refused for its size in the middle of a request that the client never ends.
  const session = http2Connect(server.url);
  const stuck = session.request({
    ":method": "POST",
    ":path": "/opencode.tool.v1.ToolService/CallTool",
    "content-type": "application/grpc",
    authorization: "Bearer caller-token",
  });
  stuck.write(Buffer.from([0, 0x7f, 0xff, 0xff, 0xff, 1]));
  const [trailers] = await once(stuck, "trailers");
  expect(trailers["grpc-status"]).toBe("8");

  const asking = Promise.withResolvers<void>();
  const reflection = createClient(ServerReflection, createGrpcTransport({ baseUrl: server.url }));
  const answers = reflection
    .serverReflectionInfo(
      (async function* () {
        yield { messageRequest: { case: "listServices" as const, value: "" } };
        await asking.promise;
      })(),
    )
    [Symbol.asyncIterator]();
  await answers.next();

  await server.close(minute);
  await expect(answers.next()).rejects.toMatchObject({ code: Code.Unavailable });
  asking.resolve();
  session.destroy();
  agent.destroy();
  for (const socket of [silent, half]) socket.destroy();
  expect(await server.logged()).toBe("");
});

test("a handler that does not stop is cut at the end of the drain", () => expectCut(startServer, transports.gRPC));

test("no connection is accepted while the server drains", async () => {
  const released = Promise.withResolvers<void>();
  const server = await startServer({
    async *watchSession(_request, { signal }) {
      yield { lastSeq: 1n };
      await released.promise;
      throw signal.reason;
    },
  });
  const stream = createClient(ToolService, transports.gRPC(server.url)).watchSession({ sessionId: "ses_1" });
  const messages = stream[Symbol.asyncIterator]();
  await messages.next();
  const closed = server.close(minute);
  await expect(fetch(`${server.url}/healthz`)).rejects.toThrow("fetch failed");
  released.resolve();
  await expect(messages.next()).rejects.toMatchObject({ code: Code.Unavailable });
  await closed;
});
