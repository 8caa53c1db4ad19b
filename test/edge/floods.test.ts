import { once } from "node:events";
import {
  type ClientHttp2Session,
  constants,
  createServer,
  connect as http2Connect,
  type ServerOptions,
} from "node:http2";
import { type AddressInfo, connect } from "node:net";
import { gzipSync } from "node:zlib";
import { create, toBinary } from "@bufbuild/protobuf";
import { expect, onTestFinished, test, vi } from "vitest";
import { CallToolRequestSchema } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { readLimits } from "../../src/config/schema.ts";
import { startServer } from "./server.ts";

// Each test makes an attack twice: against the limit, and against a server without it, where it does the damage that is counted.

const rpc = "/opencode.tool.v1.ToolService/CallTool";
const authorization = "Bearer caller-token";
const posting = { ":method": "POST", ":path": rpc, "content-type": "application/grpc", te: "trailers", authorization };

const { authorization: _, ...watching } = { ...posting, ":path": "/grpc.health.v1.Health/Watch" };

test.each([
  ["an error", constants.NGHTTP2_CANCEL, {}],
  // A watch is open when it is reset. After a whole response this code is the usual end of a stream.
  ["no error", constants.NGHTTP2_NO_ERROR, watching],
])("streams that are opened and reset for %s without a token close their connection", async (_, code, headers) => {
  // No reset is forgiven with time.
  vi.useFakeTimers({ toFake: ["performance"] });
  onTestFinished(() => void vi.useRealTimers());
  const limited = await startServer();
  const unlimited = await startBare({ streamResetBurst: 1_000_000, streamResetRate: 1_000_000 });
  const session = open(limited.url);
  const left = once(session, "goaway");
  expect(await resetStreams(session, 1_000, headers, code)).toBeLessThan(1_000);
  expect((await left)[0]).toBe(constants.NGHTTP2_NO_ERROR);
  expect(await resetStreams(open(unlimited.url), 1_000, headers, code)).toBe(1_000);
});

test("a caller may reset as many streams as it has open, and one that resets more keeps its call and connects again", async () => {
  const answer = Promise.withResolvers<void>();
  const server = await startServer({ callTool: () => answer.promise.then(() => ({})) });
  const session = open(server.url);
  const message = toBinary(CallToolRequestSchema, create(CallToolRequestSchema, { sessionId: "ses_1", tool: "echo" }));
  const waiting = session.request(posting);
  waiting.end(Buffer.concat([Buffer.of(0, 0, 0, 0, message.length), message]));
  const trailers = once(waiting.resume(), "trailers");
  expect(await resetStreams(session, 1_000, { authorization })).toBe(1_000);
  const left = once(session, "goaway");
  expect(await resetStreams(session, 10_000, { authorization })).toBeLessThan(10_000);
  expect((await left)[0]).toBe(constants.NGHTTP2_NO_ERROR);
  answer.resolve();
  expect((await trailers)[0]).toMatchObject({ "grpc-status": "0" });
});

/** Opens and resets streams until the server closes the connection; returns their number. */
async function resetStreams(
  session: ClientHttp2Session,
  maxCount: number,
  headers: object = {},
  code: number = constants.NGHTTP2_CANCEL,
): Promise<number> {
  let count = 0;
  // No more watches than may be open without a token: the others are answered at once.
  const atOnce = ":method" in headers ? 10 : 100;
  if (session.connecting) await once(session, "connect");
  while (count < maxCount && !session.closed && !session.destroyed) {
    const stream = session.request({ ":path": "/healthz", ...headers });
    stream.on("error", () => undefined);
    // An empty message of gRPC; a GET has no body.
    if (":method" in headers) stream.write(Buffer.alloc(5));
    stream.close(code);
    count += 1;
    // The answer to a ping follows what the server has read before, however busy it is.
    if (count % atOnce === 0) await pinged(session);
  }
  return count;
}

/** Waits until the server has read all that was sent, or has closed the connection. */
async function pinged(session: ClientHttp2Session): Promise<void> {
  const { promise, resolve } = Promise.withResolvers<void>();
  session.once("close", resolve);
  if (session.closed || session.destroyed || !session.ping(() => resolve())) resolve();
  await promise;
  session.off("close", resolve);
}

test("headers that one byte each repeats reach no handler beyond 128", async () => {
  const limited = await startServer();
  const unlimited = await startBare({ maxHeaderListPairs: 10_000 });
  const bomb = (session: ClientHttp2Session) =>
    session.request({ ":path": "/healthz", "x-bomb": Array(1_000).fill("v") }).on("error", () => undefined);
  const refused = bomb(open(limited.url));
  const answered: unknown[] = [];
  refused.on("response", (headers) => answered.push(headers[":status"]));
  await new Promise((resolve) => refused.resume().on("close", resolve));
  expect([answered, refused.rstCode]).toEqual([[], constants.NGHTTP2_ENHANCE_YOUR_CALM]);
  bomb(open(unlimited.url));
  expect(await unlimited.headerCount).toBeGreaterThan(1_000);
});

test("open calls of a connection are at most 1,000", async () => {
  const [limited, unlimited] = [await startServer(), await startBare({ settings: { maxConcurrentStreams: 10_000 } })];
  const openStreams = async (url: string) => {
    const session = open(url);
    await once(session, "remoteSettings");
    for (let count = 0; count < 1_500; count += 1)
      session
        .request(posting)
        .on("error", () => undefined)
        .write("x");
    return session;
  };
  const session = await openStreams(limited.url);
  // Each stream has one byte, which counts until its body ends.
  await until(async () => (await bufferedBytes(limited.url)) === 1_000);
  await new Promise((resolve) => session.ping(resolve));
  expect(await bufferedBytes(limited.url)).toBe(1_000);
  await openStreams(unlimited.url);
  await until(async () => unlimited.requestCount() === 1_500);
});

test("a body that is decompressed beyond the limit is refused, and its message reaches no rpc", async () => {
  const received: number[] = [];
  const callTool = (request: { input?: object | undefined }) => {
    received.push(JSON.stringify(request.input).length);
    return {};
  };
  const limits = { requestBytes: 33_554_432, bufferedBytes: 67_108_864 };
  const limited = await startServer({ callTool });
  const unlimited = await startServer({ callTool }, { config: { limits: { ...readLimits(), ...limits } } });
  const message = create(CallToolRequestSchema, {
    sessionId: "ses_1",
    callId: "c1",
    tool: "echo",
    input: { text: "a".repeat(16_777_216) },
  });
  const packed = gzipSync(toBinary(CallToolRequestSchema, message));
  expect(packed.length).toBeLessThan(20_000);
  const send = async (url: string) => {
    const headers = { "content-type": "application/proto", "content-encoding": "gzip", authorization };
    return (await fetch(url + rpc, { method: "POST", headers, body: packed })).status;
  };
  expect([await send(limited.url), received]).toEqual([429, []]);
  expect([await send(unlimited.url), received[0]]).toEqual([200, 16_777_227]);
});

test("a message that announces 4 GB is refused before it arrives, and one within the limit is awaited", async () => {
  const server = await startServer();
  const session = open(server.url);
  const announce = (bytes: number) => {
    const stream = session.request(posting);
    stream.on("error", () => undefined);
    const head = Buffer.alloc(5);
    head.writeUInt32BE(bytes, 1);
    stream.write(head);
    return stream;
  };
  const [trailers] = await once(announce(4_000_000_000).resume(), "trailers");
  expect(trailers["grpc-status"]).toBe("8");
  const awaited = announce(4_000_000);
  await until(async () => (await bufferedBytes(server.url)) === 5);
  expect(awaited.closed).toBe(false);
});

test("a body by HTTP/1.1 that does not arrive in time is refused; without the deadline it keeps its bytes", async () => {
  const limited = await startServer({}, { config: { limits: { ...readLimits(), bodyMs: 50 } } });
  const unlimited = await startServer({}, { config: { limits: { ...readLimits(), bodyMs: 3_600_000 } } });
  const begin = (url: string) => {
    const socket = connect(Number(new URL(url).port), "127.0.0.1");
    onTestFinished(() => void socket.destroy());
    const head = `Host: localhost\r\nContent-Type: application/proto\r\nAuthorization: ${authorization}`;
    socket.write(`POST ${rpc} HTTP/1.1\r\n${head}\r\nContent-Length: 100\r\n\r\n1234567890`);
    return socket;
  };
  const [answer] = await once(begin(limited.url), "data");
  expect(String(answer)).toContain("BODY_TIMEOUT");
  begin(unlimited.url);
  await until(async () => (await bufferedBytes(unlimited.url)) === 10);
});

/** Starts node:http2 with these options; it answers every request, and counts the requests, and the headers of the first one. */
async function startBare(options: ServerOptions & { streamResetBurst?: number; streamResetRate?: number }) {
  const seen = Promise.withResolvers<number>();
  let requestCount = 0;
  const server = createServer(options, (request, response) => {
    requestCount += 1;
    seen.resolve(request.rawHeaders.length / 2);
    if (request.method === "GET") response.end();
  });
  server.on("sessionError", () => undefined);
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  onTestFinished(() => void server.close());
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    headerCount: seen.promise,
    requestCount: () => requestCount,
  };
}

function open(url: string): ClientHttp2Session {
  const session = http2Connect(url);
  session.on("error", () => undefined);
  onTestFinished(() => session.destroy());
  return session;
}

async function bufferedBytes(url: string): Promise<number> {
  const response = await fetch(`${url}/metrics`, { headers: { authorization: "Bearer admin-token" } });
  return Number(/^toolgate_buffered_bytes (\d+)$/m.exec(await response.text())?.[1]);
}

/** Waits until a state is reached. */
async function until(holds: () => Promise<boolean>): Promise<void> {
  while (!(await holds())) await new Promise((resolve) => setTimeout(resolve, 5));
}
