import { once } from "node:events";
import { type ClientHttp2Session, type ClientHttp2Stream, connect, constants } from "node:http2";
import { connect as connectSocket } from "node:net";
import { gzipSync } from "node:zlib";
import { create, fromBinary, type MessageInitShape, toBinary } from "@bufbuild/protobuf";
import { Code, ConnectError, createClient } from "@connectrpc/connect";
import { findTrailerError } from "@connectrpc/connect/protocol-grpc";
import { compressionGzip, createConnectTransport, createGrpcTransport } from "@connectrpc/connect-node";
import { Client, credentials, Metadata } from "@grpc/grpc-js";
import { expect, onTestFinished, test } from "vitest";
import { ErrorInfoSchema } from "../../gen/google/rpc/error_details_pb.ts";
import {
  AgentService,
  type RunAgentsRequest,
  RunAgentsRequestSchema,
  type RunAgentsResponse,
  RunAgentsResponseSchema,
} from "../../gen/opencode/tool/v1/agent_service_pb.ts";
import { readLimits } from "../../src/config/schema.ts";
import type { EdgeContext } from "../../src/edge/api/rpc.ts";
import { EnvelopeParser } from "../../src/edge/rpc/direct.ts";
import { withFlags } from "../../src/edge/rpc/wire.ts";
import { startServer } from "./server.ts";

const path = "/opencode.tool.v1.AgentService/RunAgents";
const authorization = "Bearer caller-token";

type Serve = (requests: AsyncIterable<RunAgentsRequest>, context: EdgeContext) => AsyncIterable<Answer>;
type Answer = MessageInitShape<typeof RunAgentsResponseSchema>;

const progress = (text: string) => ({ message: { case: "progress" as const, value: { text } } });
const said = (text: string): Answer => ({ message: { case: "start", value: { prompt: text } } });
const textOf = ({ message }: RunAgentsRequest) => (message.case === "progress" ? message.value.text : "");
const promptOf = ({ message }: RunAgentsResponse) => (message.case === "start" ? message.value.prompt : "");
const bytesOf = (text: string) => toBinary(RunAgentsRequestSchema, create(RunAgentsRequestSchema, progress(text)));

async function* echo(requests: AsyncIterable<RunAgentsRequest>): AsyncGenerator<Answer> {
  for await (const request of requests) yield said(textOf(request));
  yield said("after the end of the requests");
}

/** Starts a server whose stream a test defines; the fields of `limits` replace its limits. */
function start(runAgents: Serve, limits: Partial<ReturnType<typeof readLimits>> = {}) {
  return startServer({}, { agents: { runAgents }, config: { limits: { ...readLimits(), ...limits } } });
}

const asCaller = [
  (next: (request: { header: Headers }) => unknown) => (request: { header: Headers }) => {
    request.header.set("authorization", authorization);
    return next(request);
  },
] as never;

const forms = {
  gRPC: (baseUrl: string) => createGrpcTransport({ baseUrl, interceptors: asCaller }),
  "gRPC with JSON": (baseUrl: string) =>
    createGrpcTransport({ baseUrl, interceptors: asCaller, useBinaryFormat: false }),
  Connect: (baseUrl: string) => createConnectTransport({ baseUrl, httpVersion: "2", interceptors: asCaller }),
  "Connect with binary messages": (baseUrl: string) =>
    createConnectTransport({ baseUrl, httpVersion: "2", interceptors: asCaller, useBinaryFormat: true }),
  "gRPC with compressed messages": (baseUrl: string) =>
    createGrpcTransport({
      ...{ baseUrl, interceptors: asCaller, sendCompression: compressionGzip, compressMinBytes: 0 },
      acceptCompression: [compressionGzip],
    }),
  "Connect with compressed messages": (baseUrl: string) =>
    createConnectTransport({
      ...{ baseUrl, httpVersion: "2", interceptors: asCaller, sendCompression: compressionGzip, compressMinBytes: 0 },
      acceptCompression: [compressionGzip],
    }),
};

test.each(Object.entries(forms))(
  "a stream by %s answers each message, and goes on after the client's end",
  async (_, open) => {
    const server = await start(echo);
    const next = turns<string>();
    async function* requests() {
      for (let text = await next.wait(); text !== "end"; text = await next.wait()) yield progress(text);
    }
    const answers = createClient(AgentService, open(server.url)).runAgents(requests())[Symbol.asyncIterator]();
    const ask = async (text: string) => {
      next.give(text);
      const { value, done } = await answers.next();
      return done ? undefined : promptOf(value);
    };
    expect(await ask("first")).toBe("first");
    expect(await ask("x".repeat(200_000))).toHaveLength(200_000);
    expect(await ask("end")).toBe("after the end of the requests");
    expect((await answers.next()).done).toBe(true);
    expect(await server.logged()).toBe("");
  },
);

test("a stream of grpc-js answers each message, and carries the error in its middle", async () => {
  const server = await start(async function* (requests) {
    for await (const request of requests) {
      if (textOf(request) === "fail") throw new ConnectError("it failed", Code.Aborted);
      yield said(textOf(request));
    }
  });
  const client = new Client(new URL(server.url).host, credentials.createInsecure());
  onTestFinished(() => client.close());
  const metadata = new Metadata();
  metadata.set("authorization", authorization);
  const stream = client.makeBidiStreamRequest(
    path,
    (text: string) => Buffer.from(bytesOf(text)),
    (bytes) => fromBinary(RunAgentsResponseSchema, bytes),
    metadata,
  );
  for (const text of ["one", "two"]) {
    stream.write(text);
    const [answer] = await once(stream, "data");
    expect(promptOf(answer)).toBe(text);
  }
  stream.write("fail");
  const [error] = await once(stream, "error");
  expect(error).toMatchObject({ code: Code.Aborted, details: "it failed" });
});

test("messages that a function yields in one turn leave in one frame", async () => {
  const texts = ["one", "two", "three", "four"];
  const server = await start(async function* () {
    for (const text of texts) yield said(text);
  });
  const stream = open(server.url);
  let frames = 0;
  stream.on("data", () => (frames += 1)).end();
  const answers = reading(stream);
  expect(await answers.failure).toBeUndefined();
  expect(answers.texts).toEqual(texts);
  expect(frames).toBe(1);
});

test("a function that ends ends the stream while the client still sends", async () => {
  const server = await start(async function* () {
    yield said("only");
  });
  const stream = open(server.url);
  const answers = reading(stream);
  stream.write(withFlags(0, bytesOf("never read")));
  expect(await answers.failure).toBeUndefined();
  expect(answers.texts).toEqual(["only"]);
});

test("a function that does not read stops the client, and reads everything later", async () => {
  const gate = Promise.withResolvers<void>();
  let seen = 0;
  const server = await start(async function* (requests) {
    await gate.promise;
    for await (const request of requests) seen += textOf(request).length;
    yield said("read");
  });
  const stream = open(server.url);
  const answers = reading(stream);
  const message = withFlags(0, bytesOf("x".repeat(65_536)));
  let sent = 0;
  const sendAll = async () => {
    for (; sent < 64; sent += 1) await new Promise((resolve) => stream.write(message, resolve));
    stream.end();
  };
  const sending = sendAll();
  await untilStalled(stream.connection, () => sent);
  expect(sent).toBeLessThan(16);
  gate.resolve();
  await sending;
  expect(await answers.failure).toBeUndefined();
  expect(seen).toBe(64 * 65_536);
});

test("a client that does not read stops the function, and gets everything later", async () => {
  let made = 0;
  const server = await start(async function* () {
    for (; made < 64; made += 1) yield said("x".repeat(65_536));
  });
  const stream = open(server.url);
  stream.end();
  await untilStalled(stream.connection, () => made);
  expect(made).toBeLessThan(16);
  const answers = reading(stream);
  expect(await answers.failure).toBeUndefined();
  expect(answers.texts.join("")).toHaveLength(64 * 65_536);
});

test.each(["resets the stream", "cuts the connection"])(
  "a client that %s aborts the function's requests and its signal, and both say so",
  async (how) => {
    const seen = Promise.withResolvers<unknown>();
    const server = await start(async function* (requests, { signal }) {
      yield said("open");
      try {
        for await (const _ of requests) seen.resolve("a message that never came");
      } catch (error) {
        seen.resolve([error, signal.reason]);
      }
    });
    const stream = open(server.url);
    stream.write(withFlags(0, bytesOf("x")).subarray(0, 3));
    await once(stream, "data");
    expect(await metric(server.url, "toolgate_buffered_bytes")).toBe(3);
    const { socket } = stream;
    if (how === "cuts the connection") socket.destroy();
    // The close() of Node's client ends the body first.
    else socket.write(Buffer.from([0, 0, 4, 3, 0, 0, 0, 0, stream.id ?? 0, 0, 0, 0, constants.NGHTTP2_CANCEL]));
    const failure = { status: "canceled", message: expect.stringContaining("the client left") };
    expect(await seen.promise).toMatchObject([failure, failure]);
    expect(await metric(server.url, "toolgate_buffered_bytes")).toBe(0);
  },
);

test("a deadline ends a stream whose function waits for the client", async () => {
  const server = await start(echo);
  const stream = open(server.url, { "grpc-timeout": "50m" });
  expect(await reading(stream).failure).toMatchObject({ code: Code.DeadlineExceeded, reason: "DEADLINE_PASSED" });
});

test("a deadline resets a stream whose client does not read, and ends its function", async () => {
  const ended = Promise.withResolvers<unknown>();
  const server = await start(async function* (_requests, { signal }) {
    try {
      for (let made = 0; made < 64; made += 1) yield said("x".repeat(65_536));
    } finally {
      ended.resolve(signal.reason);
    }
  });
  const stream = open(server.url, { "grpc-timeout": "50m" });
  expect(await ended.promise).toMatchObject({ status: "deadline_exceeded" });
  // The client still does not read: without a reset the stream would stay open.
  await once(stream, "aborted");
  expect(stream.rstCode).toBe(constants.NGHTTP2_CANCEL);
});

test("a drain ends a stream with DRAINING while both sides wait", async () => {
  const server = await start(echo);
  const stream = open(server.url);
  stream.write(withFlags(0, bytesOf("x")));
  const answers = reading(stream);
  await once(stream, "data");
  const closed = server.close(60_000);
  expect(await answers.failure).toMatchObject({ code: Code.Unavailable, reason: "DRAINING" });
  await closed;
  expect(await server.logged()).toBe("");
});

const whole = withFlags(0, bytesOf("hi"));
test.each([
  [
    "a message over the limit",
    "ResourceExhausted",
    "REQUEST_TOO_LARGE",
    withFlags(0, Buffer.alloc(0)).fill(0x7f, 1, 5),
  ],
  [
    "a compressed message over the limit",
    "ResourceExhausted",
    "REQUEST_TOO_LARGE",
    withFlags(1, gzipSync(bytesOf("x".repeat(5_000_000)))),
  ],
  [
    "bytes that are not compressed as the header says",
    "InvalidArgument",
    "INVALID_MESSAGE",
    withFlags(1, Buffer.from("x")),
  ],
  ["an end in the middle of a message", "InvalidArgument", "INVALID_MESSAGE", whole.subarray(0, 6)],
  ["unknown flags", "InvalidArgument", "INVALID_MESSAGE", withFlags(4, bytesOf("x"))],
  ["bytes that are no message", "InvalidArgument", "INVALID_MESSAGE", withFlags(0, Buffer.from([0x0a, 0x7f, 1]))],
  ["a message that breaks a rule of the contract", "InvalidArgument", "INVALID_MESSAGE", withFlags(0, Buffer.alloc(0))],
] as const)(
  "%s ends the stream with %s and its reason, after the answers to what was before",
  async (_, code, reason, bytes) => {
    const server = await start(echo, { requestBytes: 1_048_576, inputBytes: 4_096 });
    const stream = open(server.url, { "grpc-encoding": "gzip" });
    const answers = reading(stream);
    stream.write(whole);
    stream.end(bytes);
    expect(await answers.failure).toMatchObject({ code: Code[code], reason });
    expect(answers.texts).toEqual(["hi"]);
    expect(await metric(server.url, "toolgate_buffered_bytes")).toBe(0);
    expect(await server.logged()).toBe("");
  },
);

test("a compressed message that no header explains ends the stream with gRPC's code for it", async () => {
  const stream = open((await start(echo)).url);
  stream.write(withFlags(1, gzipSync(bytesOf("x"))));
  expect(await reading(stream).failure).toMatchObject({ code: Code.Internal, reason: "INVALID_MESSAGE" });
});

test("a message that stops in its middle is BODY_TIMEOUT, and a pause between messages is not", async () => {
  const server = await start(echo, { bodyMs: 100 });
  const paused = open(server.url);
  const answers = reading(paused);
  paused.write(whole);
  await once(paused, "data");
  const stuck = open(server.url);
  stuck.write(whole.subarray(0, 6));
  expect(await reading(stuck).failure).toMatchObject({ code: Code.DeadlineExceeded, reason: "BODY_TIMEOUT" });
  paused.end(whole);
  expect(await answers.failure).toBeUndefined();
  expect(answers.texts).toEqual(["hi", "hi", "after the end of the requests"]);
});

test("a stream over HTTP/1.1 is refused with a reason, and says that it needs HTTP/2", async () => {
  const server = await start(echo);
  const headers = { "content-type": "application/connect+json", authorization };
  const response = await fetch(server.url + path, { method: "POST", headers, body: whole });
  expect(await response.text()).toMatch(/needs HTTP\/2.*NOT_SERVED/s);
});

/** Opens a stream by gRPC, whose answers nobody reads yet. */
function open(url: string, headers: Record<string, string> = {}) {
  const socket = connectSocket(Number(new URL(url).port), "127.0.0.1");
  const session = connect(url, { createConnection: () => socket });
  session.on("error", () => undefined);
  onTestFinished(() => session.destroy());
  const all = { ":method": "POST", ":path": path, "content-type": "application/grpc", te: "trailers", authorization };
  const stream = session.request({ ...all, ...headers }, { endStream: false });
  stream.on("error", () => undefined);
  return Object.assign(stream, { connection: session, socket });
}

/** Reads the answers of a stream; `failure` resolves at its end, to undefined if it ended OK. */
function reading(stream: ClientHttp2Stream) {
  const parser = new EnvelopeParser();
  const texts: string[] = [];
  stream.on("data", (chunk: Buffer) => {
    parser.push(chunk);
    for (let next = parser.take(); next !== undefined; next = parser.take())
      texts.push(promptOf(fromBinary(RunAgentsResponseSchema, next.message)));
  });
  const failure = once(stream, "trailers").then(([trailers]) => {
    const error = findTrailerError(new Headers(Object.entries(trailers)));
    return error && { code: error.code, reason: error.findDetails(ErrorInfoSchema)[0]?.reason };
  });
  return { texts, failure };
}

/** Resolves when a number has not changed for 20 requests on the connection, one after the other: what can be sent was sent. */
async function untilStalled(session: ClientHttp2Session, count: () => number): Promise<void> {
  for (let same = 0, last = count(); same < 20; same = count() === last ? same + 1 : 0) {
    last = count();
    await once(session.request({ ":path": "/healthz" }).resume(), "close");
  }
}

async function metric(url: string, name: string): Promise<number> {
  const headers = { authorization: "Bearer watcher-token" };
  const text = await (await fetch(`${url}/metrics`, { headers })).text();
  return Number(new RegExp(`^${name} (.*)$`, "m").exec(text)?.[1]);
}

/** Passes values from a test to a generator, one for each wait. */
function turns<T>() {
  let turn = Promise.withResolvers<T>();
  return {
    give: (value: T) => turn.resolve(value),
    async wait() {
      const value = await turn.promise;
      turn = Promise.withResolvers<T>();
      return value;
    },
  };
}
