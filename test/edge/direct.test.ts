import { once } from "node:events";
import { request as http1Request } from "node:http";
import { connect } from "node:http2";
import { gunzipSync, gzipSync } from "node:zlib";
import { create, fromBinary, toBinary } from "@bufbuild/protobuf";
import { Code, ConnectError, createClient, type Interceptor } from "@connectrpc/connect";
import { findTrailerError } from "@connectrpc/connect/protocol-grpc";
import { compressionGzip, createConnectTransport, createGrpcTransport } from "@connectrpc/connect-node";
import { expect, onTestFinished, test } from "vitest";
import { ErrorInfoSchema } from "../../gen/google/rpc/error_details_pb.ts";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import {
  GetServerInfoRequestSchema,
  GetServerInfoResponseSchema,
  ToolService,
} from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { RequestError } from "../../src/core/request-error.ts";
import { startServer } from "./server.ts";

const authorization = "Bearer caller-token";
const asCaller: Interceptor = (next) => (request) => {
  request.header.set("authorization", authorization);
  return next(request);
};
const transports = {
  Connect: (baseUrl: string) => createConnectTransport({ baseUrl, httpVersion: "2", interceptors: [asCaller] }),
  "Connect over HTTP/1.1": (baseUrl: string) =>
    createConnectTransport({ baseUrl, httpVersion: "1.1", interceptors: [asCaller] }),
  gRPC: (baseUrl: string) => createGrpcTransport({ baseUrl, interceptors: [asCaller] }),
};

const envelope = (message: Uint8Array, flags = 0) => {
  const head = Buffer.alloc(5);
  head.writeUInt8(flags);
  head.writeUInt32BE(message.length, 1);
  return Buffer.concat([head, message]);
};
const asking = envelope(toBinary(GetServerInfoRequestSchema, create(GetServerInfoRequestSchema)));

test("a gRPC request is one message, however many chunks it arrives in", async () => {
  const server = await startServer();
  const { body, error } = await grpcCall(
    server.url,
    [...asking].map((byte) => Buffer.from([byte])),
  );
  expect(error).toBeUndefined();
  expect(fromBinary(GetServerInfoResponseSchema, body.subarray(5)).principal).toBe("caller");
});

test.each([
  ["an empty body", "Unimplemented", Buffer.alloc(0)],
  ["part of an envelope", "InvalidArgument", Buffer.from([0, 0])],
  ["a body shorter than its envelope says", "InvalidArgument", envelope(Buffer.alloc(9)).subarray(0, 9)],
  ["two messages", "Unimplemented", Buffer.concat([asking, asking])],
  ["a compressed message without an encoding", "Internal", envelope(gzipSync(asking), 1)],
  ["a malformed message", "InvalidArgument", envelope(Buffer.from([0x0a, 0x7f, 1]))],
] as const)("%s is refused as INVALID_MESSAGE with gRPC's code %s, and nothing is logged", async (_, code, body) => {
  const server = await startServer();
  const { error } = await grpcCall(server.url, [body]);
  expect(error?.code).toBe(Code[code]);
  expect(error?.findDetails(ErrorInfoSchema)).toMatchObject([{ reason: "INVALID_MESSAGE" }]);
  expect(await server.logged()).toBe("");
});

test("a malformed message in a form that Connect's router serves is refused as INVALID_MESSAGE", async () => {
  const server = await startServer({ async *watchSession() {} });
  const headers = { "content-type": "application/connect+proto", authorization };
  const body = envelope(Buffer.from([0x0a, 0x7f, 1]));
  const url = `${server.url}/opencode.tool.v1.ToolService/WatchSession`;
  const answer = await (await fetch(url, { method: "POST", headers, body })).text();
  expect(answer).toContain("invalid_argument");
  expect(answer).toContain("INVALID_MESSAGE");
  expect(await server.logged()).toBe("");
});

test("malformed JSON is refused as INVALID_MESSAGE with the place", async () => {
  const server = await startServer();
  const post = async (body: string) => {
    const headers = { "content-type": "application/json", authorization };
    const response = await fetch(`${server.url}/opencode.tool.v1.ToolService/CallTool`, {
      method: "POST",
      headers,
      body,
    });
    return [response.status, await response.json()];
  };
  const reason = { details: [{ type: "google.rpc.ErrorInfo", debug: { reason: "INVALID_MESSAGE" } }] };
  expect(await post("{")).toMatchObject([400, { code: "invalid_argument", ...reason }]);
  expect(await post('{"tol": "bash"}')).toMatchObject([400, { message: expect.stringContaining('"tol"'), ...reason }]);
});

test("a number that JSON cannot hold is refused as INVALID_MESSAGE with its path, and the largest one is not", async () => {
  const server = await startServer({ callTool: () => ({}) });
  const call = async (number: string) => {
    const response = await fetch(`${server.url}/opencode.tool.v1.ToolService/CallTool`, {
      method: "POST",
      headers: { "content-type": "application/json", authorization },
      body: `{"sessionId": "ses_1", "callId": "c1", "tool": "echo", "input": {"a": [{"b": ${number}}]}}`,
    });
    return [response.status, await response.json()];
  };
  expect(await call("1e400")).toMatchObject([
    400,
    { details: [{ debug: { reason: "INVALID_MESSAGE", metadata: { field: "input.a.0.b" } } }] },
  ]);
  expect(await call("1.7976931348623157e308")).toEqual([200, {}]);
  expect(await server.logged()).toBe("");
});

test("a compressed request is answered", async () => {
  const server = await startServer();
  const { body, error } = await grpcCall(server.url, [envelope(gzipSync(asking.subarray(5)), 1)], {
    "grpc-encoding": "gzip",
  });
  expect(error).toBeUndefined();
  expect(body.length).toBeGreaterThan(5);
});

test("a large response is compressed exactly for clients that accept it, in every protocol", async () => {
  const version = "v".repeat(100_000);
  const server = await startServer({ getServerInfo: () => ({ version }) });
  const packed = await grpcCall(server.url, [asking], { "grpc-accept-encoding": "identity,gzip" });
  expect([packed.body[0], packed.headers["grpc-encoding"]]).toEqual([1, "gzip"]);
  expect(fromBinary(GetServerInfoResponseSchema, gunzipSync(packed.body.subarray(5))).version).toBe(version);
  const plain = await grpcCall(server.url, [asking]);
  expect([plain.body[0], plain.headers["grpc-encoding"]]).toEqual([0, undefined]);
  for (const acceptCompression of [[], [compressionGzip]]) {
    const baseUrl = server.url;
    const transport = createConnectTransport({
      baseUrl,
      httpVersion: "1.1",
      acceptCompression,
      interceptors: [asCaller],
    });
    expect((await createClient(ToolService, transport).getServerInfo({})).version).toBe(version);
  }
  for (const accepted of ["identity", "gzip"]) {
    const headers = { "content-type": "application/proto", "accept-encoding": accepted, authorization };
    const url = `${server.url}/opencode.tool.v1.ToolService/GetServerInfo`;
    const response = await fetch(url, { method: "POST", headers });
    expect(response.headers.get("content-encoding")).toBe(accepted === "gzip" ? "gzip" : null);
  }
});

for (const [name, open] of Object.entries(transports)) {
  test(`the deadline of ${name} aborts the rpc and is reported as deadline_exceeded`, async () => {
    const server = await startServer({
      getServerInfo: (_, { signal, deadline }) =>
        new Promise((_resolve, reject) => {
          expect(deadline).toBeGreaterThan(Date.now());
          signal.addEventListener("abort", () => reject(signal.reason));
        }),
    });
    // A header sets the deadline, so that the server ends the rpc and not the client's own timer.
    const header = name === "gRPC" ? { "grpc-timeout": "1S" } : { "connect-timeout-ms": "1000" };
    const error = await createClient(ToolService, open(server.url))
      .getServerInfo({}, { headers: header })
      .catch(ConnectError.from);
    expect(error).toMatchObject({ code: Code.DeadlineExceeded });
  });

  test(`a client that leaves ${name} aborts the rpc`, async () => {
    const [entered, aborted] = [Promise.withResolvers<void>(), Promise.withResolvers<unknown>()];
    const server = await startServer({
      async getServerInfo(_, { signal }) {
        entered.resolve();
        await new Promise<void>((resolve) => signal.addEventListener("abort", () => resolve()));
        aborted.resolve(signal.reason);
        return {};
      },
    });
    const leaving = new AbortController();
    const call = createClient(ToolService, open(server.url)).getServerInfo({}, { signal: leaving.signal });
    await entered.promise;
    leaving.abort();
    await expect(call).rejects.toMatchObject({ code: Code.Canceled });
    expect(await aborted.promise).toMatchObject({ status: "canceled" });
  });
}

test("a stream ends when its client leaves, also while messages are unread", async () => {
  const ended = Promise.withResolvers<number>();
  const server = await startServer({
    async *watchSession() {
      let sent = 0;
      try {
        for (;;) {
          yield { storeId: "s".repeat(16_384) };
          sent += 1;
        }
      } finally {
        ended.resolve(sent);
      }
    },
  });
  const session = connect(server.url);
  const stream = session.request(grpcHeaders("WatchSession"));
  stream.end(envelope(Buffer.from("\n\x05ses_1")));
  await once(stream, "response");
  session.destroy();
  // The windows of the connection bound what was sent before the client stopped reading.
  expect(await ended.promise).toBeLessThan(64);
});

test.each(["application/proto", "application/connect+proto", "application/grpc-web+proto", "application/grpc"])(
  "a client that breaks off a request by %s causes no server error",
  async (type) => {
    const server = await startServer({ async *watchSession() {} });
    const rpc = type === "application/proto" ? "GetServerInfo" : "WatchSession";
    const headers = { "content-type": type, "content-length": 10, expect: "100-continue", authorization };
    const request = http1Request(`${server.url}/opencode.tool.v1.ToolService/${rpc}`, { method: "POST", headers });
    // At this point the rpc waits for the body.
    await once(request, "continue");
    request.on("error", () => undefined);
    await new Promise((resolve) => request.on("close", resolve).destroy());
    // The server closes after it has finished with each connection.
    await server.close(60_000);
    expect(await server.logged()).toBe("");
  },
);

test("a refusal that quotes malformed text can be sent", async () => {
  const server = await startServer({
    getServerInfo() {
      throw new RequestError(ErrorReason.NO_SUCH_SESSION, "there is no session \ud800");
    },
  });
  for (const open of Object.values(transports)) {
    const error = await createClient(ToolService, open(server.url)).getServerInfo({}).catch(ConnectError.from);
    expect(error).toMatchObject({ code: Code.NotFound, rawMessage: "there is no session \ufffd" });
  }
});

test("a request over the limit is refused by its announced length, before it arrives", async () => {
  const server = await startServer();
  const request = http1Request(`${server.url}/opencode.tool.v1.ToolService/GetServerInfo`, {
    method: "POST",
    headers: { "content-type": "application/proto", "content-length": 5_000_000, authorization },
  });
  request.on("error", () => undefined);
  request.flushHeaders();
  const [response] = await once(request, "response");
  expect(response.statusCode).toBe(429);
  request.destroy();
});

const grpcHeaders = (rpc: string) => ({
  ":method": "POST",
  ":path": `/opencode.tool.v1.ToolService/${rpc}`,
  "content-type": "application/grpc",
  te: "trailers",
  authorization,
});

/** Calls GetServerInfo with a body of these chunks. */
async function grpcCall(url: string, chunks: readonly Buffer[], headers: Record<string, string> = {}) {
  const session = connect(url);
  onTestFinished(() => session.destroy());
  const stream = session.request({ ...grpcHeaders("GetServerInfo"), ...headers });
  for (const chunk of chunks) {
    await new Promise((resolve) => stream.write(chunk, resolve));
  }
  stream.end();
  const body: Buffer[] = [];
  stream.on("data", (chunk: Buffer) => body.push(chunk));
  const [[answered], [trailers]] = await Promise.all([once(stream, "response"), once(stream, "trailers")]);
  const error = findTrailerError(new Headers(Object.entries(trailers).map(([name, value]) => [name, String(value)])));
  return { headers: answered, body: Buffer.concat(body), error };
}
