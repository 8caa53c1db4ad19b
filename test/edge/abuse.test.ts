import { once } from "node:events";
import { type ClientHttp2Session, type ClientHttp2Stream, connect as http2Connect } from "node:http2";
import { connect, type Socket } from "node:net";
import { connect as tlsConnect } from "node:tls";
import { toBinary } from "@bufbuild/protobuf";
import { FileDescriptorProtoSchema } from "@bufbuild/protobuf/wkt";
import { Code, ConnectError, createClient } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";
import { describe, expect, onTestFinished, test } from "vitest";
import { ErrorInfoSchema } from "../../gen/google/rpc/error_details_pb.ts";
import { file_grpc_health_v1_health } from "../../gen/grpc/health/v1/health_pb.ts";
import { ServerReflection } from "../../gen/grpc/reflection/v1/reflection_pb.ts";
import { ServerReflection as ServerReflectionAlpha } from "../../gen/grpc/reflection/v1alpha/reflection_pb.ts";
import { ToolService } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { readLimits } from "../../src/config/schema.ts";
import { overloaded } from "../../src/edge/api/request-failure.ts";
import { createReadiness } from "../../src/edge/http/probes.ts";
import { reflectionService } from "../../src/edge/rpc/rpc-door.ts";
import { makeCertificates } from "./certificates.ts";
import { startServer } from "./server.ts";

const rpc = "/opencode.tool.v1.ToolService/GetServerInfo";
const check = "/grpc.health.v1.Health/Check";
const limits = (changed: Partial<ReturnType<typeof readLimits>>) => ({
  config: { limits: { ...readLimits(), ...changed } },
});
const authorization = "Bearer caller-token";
/** A limit that no attack here reaches. */
const unlimited = 1_073_741_824;

describe("bodies", () => {
  test("that never end are counted while their clients stay, and not after they left", async () => {
    const server = await startServer();
    const session = open(server.url);
    const streams = Array.from({ length: 8 }, () => post(session, rpc, { authorization }));
    for (const stream of streams) stream.write(unfinished(10_000));
    await until(async () => (await bufferedBytes(server.url)) === 80_000);
    session.destroy();
    await until(async () => (await bufferedBytes(server.url)) === 0);
  });

  test("that never end are counted by Connect's router, too", async () => {
    const server = await startServer();
    const session = open(server.url);
    const stream = post(session, rpc, { authorization, "content-type": "application/grpc-web" });
    stream.write(unfinished(10_000));
    await until(async () => (await bufferedBytes(server.url)) === 10_000);
    session.destroy();
    await until(async () => (await bufferedBytes(server.url)) === 0);
  });

  test("over the budget of all requests are refused as OVERLOADED, and those before them are not", async () => {
    const server = await startServer({}, limits({ requestBytes: 20_000, bufferedBytes: 20_000 }));
    const session = open(server.url);
    const first = post(session, rpc, { authorization });
    first.write(unfinished(15_000));
    await until(async () => (await bufferedBytes(server.url)) === 15_000);
    const second = post(session, rpc, { authorization });
    second.write(unfinished(6_000));
    expect(await ended(second)).toMatchObject({ code: Code.ResourceExhausted, reason: "OVERLOADED" });
    expect(await bufferedBytes(server.url)).toBe(15_000);
    first.close();
  });

  test("without that budget hold as many bytes as clients send", async () => {
    const server = await startServer({}, limits({ requestBytes: 20_000, bufferedBytes: unlimited }));
    const session = open(server.url);
    for (let count = 0; count < 10; count += 1) post(session, rpc, { authorization }).write(unfinished(15_000));
    await until(async () => (await bufferedBytes(server.url)) === 150_000);
  });

  test.each(["application/grpc", "application/grpc-web", "application/proto"])(
    "of public rpcs by %s are refused above 4 KiB, and no other ones",
    async (type) => {
      const server = await startServer();
      const session = open(server.url);
      const reasonOf = async (path: string, bytes: number) => {
        const stream = post(session, path, { authorization, "content-type": type });
        const body = Buffer.alloc(bytes);
        stream.end(type === "application/proto" ? body : Buffer.concat([envelopeOf(bytes), body]));
        return (await ended(stream)).reason;
      };
      expect(await reasonOf(check, 4_200)).toBe("REQUEST_TOO_LARGE");
      expect(await reasonOf(check, 4_000)).toBeUndefined();
      expect(await reasonOf(rpc, 4_200)).toBeUndefined();
    },
  );

  test("of public rpcs without that limit hold what a client without a token sends", async () => {
    const server = await startServer({}, limits({ publicRequestBytes: 4_194_304 }));
    const session = open(server.url);
    for (let count = 0; count < 8; count += 1) post(session, check).write(unfinished(60_000));
    await until(async () => (await bufferedBytes(server.url)) > 400_000);
  });

  test("of refused requests are not read: a client without a token occupies no memory at any other rpc", async () => {
    const server = await startServer();
    const session = open(server.url);
    const stream = post(session, rpc);
    stream.write(unfinished(60_000));
    expect(await ended(stream)).toMatchObject({ code: Code.Unauthenticated });
    expect(await bufferedBytes(server.url)).toBe(0);
    // The same bytes with a token are read, and counted.
    post(session, rpc, { authorization }).write(unfinished(60_000));
    await until(async () => (await bufferedBytes(server.url)) === 60_000);
  });

  test.each(["application/grpc", "application/grpc-web"])(
    "by %s that do not arrive in time are refused as BODY_TIMEOUT, and their stream is closed",
    async (type) => {
      const server = await startServer({}, limits({ bodyMs: 50 }));
      const session = open(server.url);
      const refused = [rpc, check].map(async (path) => {
        const stream = post(session, path, { authorization, "content-type": type });
        stream.write(Buffer.from([0, 0]));
        const { reason } = await ended(stream);
        if (!stream.closed) await once(stream, "close");
        return reason;
      });
      expect(await Promise.all(refused)).toEqual(["BODY_TIMEOUT", "BODY_TIMEOUT"]);
      expect(await bufferedBytes(server.url)).toBe(0);
    },
  );

  test("without that deadline keep their streams and bytes", async () => {
    const server = await startServer({}, limits({ bodyMs: 3_600_000 }));
    const session = open(server.url);
    let refusedCount = 0;
    for (let count = 0; count < 50; count += 1) {
      const stream = post(session, check).on("response", () => {
        refusedCount += 1;
      });
      stream.write(Buffer.from([0, 0]));
    }
    // Of one connection 16 requests without a token stay open, with two bytes each.
    await until(async () => refusedCount === 34);
    expect(await bufferedBytes(server.url)).toBe(32);
  });
});

describe("connections", () => {
  test("over the cap of an address are closed, and one that leaves makes place for another", async () => {
    const server = await startServer({}, limits({ connectionsFromLoopback: 3 }));
    const first = await healthy(server.url);
    await healthy(server.url);
    await healthy(server.url);
    expect(await isClosed(server.url)).toBe(true);
    first.destroy();
    await until(async () => !(await isClosed(server.url)));
  });

  test("without that cap are as many as a client opens", async () => {
    const server = await startServer({}, limits({ connectionsFromLoopback: 100 }));
    for (let count = 0; count < 50; count += 1) await healthy(server.url);
    expect(await metric(server.url, "toolgate_connections")).toBeGreaterThanOrEqual(50);
  });

  test("from a trusted proxy count in total only", async () => {
    const { config } = limits({ connectionsFromLoopback: 1, connections: 3 });
    const server = await startServer({}, { config: { ...config, trustedProxies: ["127.0.0.0/8"] } });
    for (let count = 0; count < 3; count += 1) await healthy(server.url);
    expect(await isClosed(server.url)).toBe(true);
  });

  test("from an address outside the networks of trusted proxies count for the address", async () => {
    const { config } = limits({ connectionsFromLoopback: 1, connections: 3 });
    const trustedProxies = ["126.0.0.0/8", "127.0.0.2", "::1"];
    const server = await startServer({}, { config: { ...config, trustedProxies } });
    await healthy(server.url);
    expect(await isClosed(server.url)).toBe(true);
  });

  test.each([
    ["has sent nothing", ""],
    ["speaks HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0"],
  ])("of a client that ends its own direction and %s are closed", async (_, begin) => {
    const server = await startServer();
    const socket = connect({ port: Number(new URL(server.url).port), host: "127.0.0.1", allowHalfOpen: true }).resume();
    onTestFinished(() => void socket.destroy());
    socket.on("error", () => undefined);
    if (begin === "") await once(socket, "connect");
    else {
      socket.write(begin, "latin1");
      await once(socket, "data");
    }
    socket.end();
    await once(socket, "end");
    await until(async () => (await metric(server.url, "toolgate_connections")) === 1);
  });

  test("over the cap are closed before their TLS handshake", async () => {
    const certificates = await makeCertificates();
    onTestFinished(certificates.remove);
    const { cert, key } = certificates.server;
    const { config } = limits({ connectionsFromLoopback: 1 });
    const server = await startServer({}, { config: { ...config, tls: { cert, key, clientCa: undefined } } });
    const port = Number(new URL(server.url).port);
    const admitted = tlsConnect({ port, host: "127.0.0.1", ca: certificates.ca.cert });
    onTestFinished(() => void admitted.destroy());
    await once(admitted, "secureConnect");
    const refused = connect(port, "127.0.0.1").resume();
    refused.on("error", () => undefined);
    await once(refused, "close");
    expect(admitted.destroyed).toBe(false);
    admitted.destroy();
    await once(admitted, "close");
    // Below the cap the same client gets its handshake.
    await until(() => isHandshaken(port, certificates.ca.cert));
  });

  test("that were refused are counted and logged once", async () => {
    const { config } = limits({ connections: 1 });
    const server = await startServer({}, { config });
    const session = open(server.url);
    await once(session, "connect");
    for (let count = 0; count < 5; count += 1) expect(await isClosed(server.url)).toBe(true);
    const stream = session.request({ ":path": "/metrics", authorization: "Bearer admin-token" });
    const text = Buffer.concat(await stream.toArray()).toString();
    expect(text).toContain("\ntoolgate_connections 1\n");
    expect(text).toContain("\ntoolgate_connections_refused_total 5\n");
    const lines = (await server.logged()).split("\n").filter((line) => line.includes("a connection was refused"));
    expect(lines.map((line) => JSON.parse(line))).toMatchObject([
      { message: expect.stringContaining("since connections is reached"), address: "127.0.0.1", count: 1 },
    ]);
  });
});

describe("open requests of a connection", () => {
  const watch = "/grpc.health.v1.Health/Watch";
  test("without a token are capped, and one that ends makes place for another", async () => {
    const server = await startServer({}, limits({ requestsWithoutToken: 3 }));
    const session = open(server.url);
    const [first] = await watching(session, 3);
    expect(await ended(post(session, watch))).toMatchObject({ code: Code.ResourceExhausted, reason: "OVERLOADED" });
    await watching(session, 3, { authorization });
    await watching(open(server.url), 3);
    first?.close();
    await until(async () => (await ended(post(session, "/healthz", { ":method": "GET" }))).reason === undefined);
  });

  test("without a token and without that cap are as many as HTTP/2 allows", async () => {
    const server = await startServer({}, limits({ requestsWithoutToken: 10_000 }));
    await watching(open(server.url), 99);
  });

  test("are not capped while authentication is off", async () => {
    const { config } = limits({ requestsWithoutToken: 3 });
    const server = await startServer({}, { config: { ...config, insecureNoAuth: true } });
    await watching(open(server.url), 10);
  });

  async function watching(session: ClientHttp2Session, count: number, headers = {}) {
    const streams = Array.from({ length: count }, () => post(session, watch, headers));
    for (const stream of streams) {
      stream.end(Buffer.alloc(5));
      await once(stream, "data");
    }
    return streams;
  }
});

describe("reflection", () => {
  const budget = () => {
    const seen: number[] = [];
    let used = 0;
    return {
      seen,
      get usedBytes() {
        return used;
      },
      reserve(bytes: number) {
        if (bytes > 1_000_000) throw overloaded("buffered_bytes", "full");
        used += bytes;
        seen.push(used);
      },
      release(bytes: number) {
        used -= bytes;
      },
    };
  };
  const question = { host: "", messageRequest: { case: "fileContainingSymbol", value: ToolService.typeName } };

  test("encodes each file once, for the first request, sends a dependency once per stream, and returns its bytes to the budget", async () => {
    const encoded: string[] = [];
    const counted = budget();
    const encode = (file: (typeof ToolService)["file"]) => {
      encoded.push(file.proto.name);
      return toBinary(FileDescriptorProtoSchema, file.proto);
    };
    const { serverReflectionInfo } = reflectionService([ToolService.file, file_grpc_health_v1_health], {
      budget: counted,
      encode,
    });
    expect(encoded).toEqual([]);
    const fileCounts: number[] = [];
    for (let stream = 0; stream < 5; stream += 1) {
      async function* questions() {
        for (let asked = 0; asked < 100; asked += 1) yield question;
      }
      const { signal } = new AbortController();
      for await (const { messageResponse: answer } of serverReflectionInfo(questions(), { signal }))
        if (answer.case === "fileDescriptorResponse") fileCounts.push(answer.value.fileDescriptorProto.length);
    }
    // All streams share one index: without it, each of the five would encode every file.
    expect(encoded.length).toBeGreaterThan(5);
    expect(encoded.length).toBe(new Set(encoded).size);
    expect(fileCounts.length).toBe(500);
    expect(fileCounts.filter((count) => count > 1)).toHaveLength(5);
    expect(counted.usedBytes).toBe(0);
    expect(Math.max(...counted.seen)).toBeGreaterThan(10_000);
  });

  test("returns the bytes of answers that a client leaves unread", async () => {
    const server = await startServer();
    const session = open(server.url);
    const asked = envelopeOf(question.messageRequest.value.length + 2);
    const text = Buffer.from(
      `\x22${String.fromCharCode(question.messageRequest.value.length)}${question.messageRequest.value}`,
    );
    for (let stream = 0; stream < 10; stream += 1)
      post(session, "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo").write(Buffer.concat([asked, text]));
    await until(async () => (await bufferedBytes(server.url)) > 500_000);
    session.destroy();
    await until(async () => (await bufferedBytes(server.url)) === 0);
  });

  test("answers v1alpha as well as v1", async () => {
    const server = await startServer();
    const transport = createGrpcTransport({ baseUrl: server.url });
    async function* questions() {
      yield { messageRequest: { case: "listServices" as const, value: "" } };
    }
    for (const service of [ServerReflection, ServerReflectionAlpha]) {
      for await (const { messageResponse } of createClient(service, transport).serverReflectionInfo(questions())) {
        expect(JSON.stringify(messageResponse)).toContain(ToolService.typeName);
      }
    }
  });

  test("takes no more than 4 KiB of questions on a stream", async () => {
    const { answered, error } = await askOften(await startServer());
    expect(error?.findDetails(ErrorInfoSchema)).toMatchObject([{ reason: "REQUEST_TOO_LARGE" }]);
    expect(answered).toBeLessThan(128);
  });

  test("without that limit answers every question of a stream", async () => {
    const { answered, error } = await askOften(await startServer({}, limits({ publicRequestBytes: 4_194_304 })));
    expect([answered, error]).toEqual([1_000, undefined]);
  });

  /** Asks 1,000 times on one stream, and counts the answers. */
  async function askOften({ url }: { url: string }) {
    const client = createClient(ServerReflection, createGrpcTransport({ baseUrl: url }));
    async function* questions() {
      for (let asked = 0; asked < 1_000; asked += 1)
        yield { messageRequest: { case: "fileContainingSymbol" as const, value: ToolService.typeName } };
    }
    let answered = 0;
    try {
      for await (const _ of client.serverReflectionInfo(questions())) answered += 1;
      return { answered, error: undefined };
    } catch (cause) {
      return { answered, error: ConnectError.from(cause) };
    }
  }
});

test("one probe of the store answers all that ask meanwhile, and the next question starts another", async () => {
  const probes: PromiseWithResolvers<boolean>[] = [];
  const ready = () => {
    const probe = Promise.withResolvers<boolean>();
    probes.push(probe);
    return probe.promise;
  };
  const readiness = createReadiness(
    { ready, safety: () => ({ copies: 0, expected: 0, required: 0, warnings: [] }), agrees: () => true },
    new AbortController().signal,
  );
  const asked = Array.from({ length: 200 }, () => readiness.problem());
  expect(probes.length).toBe(1);
  probes[0]?.resolve(true);
  expect(new Set(await Promise.all(asked))).toEqual(new Set([undefined]));
  const again = readiness.problem();
  expect(probes.length).toBe(2);
  probes[1]?.resolve(false);
  expect(await again).toContain("the store cannot write");
  // Without the shared probe each question is a write to the store.
  probes.length = 0;
  for (let asked = 0; asked < 200; asked += 1)
    void createReadiness(
      { ready, safety: () => ({ copies: 0, expected: 0, required: 0, warnings: [] }), agrees: () => true },
      new AbortController().signal,
    ).problem();
  expect(probes.length).toBe(200);
});

function open(url: string): ClientHttp2Session {
  const session = http2Connect(url);
  session.on("error", () => undefined);
  onTestFinished(() => session.destroy());
  return session;
}

function post(session: ClientHttp2Session, path: string, headers: Record<string, string> = {}): ClientHttp2Stream {
  const all = { ":method": "POST", ":path": path, "content-type": "application/grpc", te: "trailers", ...headers };
  const stream = session.request(all, { endStream: all[":method"] === "GET" });
  stream.on("error", () => undefined);
  return stream;
}

function envelopeOf(length: number): Buffer {
  const head = Buffer.alloc(5);
  head.writeUInt32BE(length, 1);
  return head;
}

/** Returns the first bytes of a message that is one byte longer. */
function unfinished(bytes: number): Buffer {
  return Buffer.concat([envelopeOf(bytes - 4), Buffer.alloc(bytes - 5)]);
}

/** Returns the reason of a refusal, wherever the protocol has it. */
async function ended(stream: ClientHttp2Stream): Promise<{ code: number; reason: string | undefined }> {
  const chunks: Buffer[] = [];
  let trailers: Record<string, unknown> = {};
  stream.on("data", (chunk: Buffer) => chunks.push(chunk));
  stream.on("response", (headers) => {
    trailers = { ...trailers, ...headers };
  });
  stream.on("trailers", (headers) => {
    trailers = { ...trailers, ...headers };
  });
  if (!stream.readableEnded) await once(stream, "end");
  const inBody = Object.fromEntries(
    Buffer.concat(chunks)
      .toString("latin1")
      .split("\r\n")
      .map((line) => line.slice(line.indexOf("grpc-")).split(": ", 2)),
  );
  const fields = { ...inBody, ...trailers };
  const details = Buffer.from(String(fields["grpc-status-details-bin"] ?? ""), "base64").toString("latin1");
  const text = details + Buffer.concat(chunks).toString("latin1");
  return {
    code: Number(fields["grpc-status"]),
    reason: ["OVERLOADED", "REQUEST_TOO_LARGE", "BODY_TIMEOUT"].find((reason) => text.includes(reason)),
  };
}

function bufferedBytes(url: string): Promise<number> {
  return metric(url, "toolgate_buffered_bytes");
}

async function metric(url: string, name: string): Promise<number> {
  const response = await fetch(`${url}/metrics`, { headers: { authorization: "Bearer admin-token" } });
  return Number(new RegExp(`^${name} (\\d+)$`, "m").exec(await response.text())?.[1]);
}

/** Returns whether a client gets its TLS handshake. */
async function isHandshaken(port: number, ca: string | Buffer): Promise<boolean> {
  const socket = tlsConnect({ port, host: "127.0.0.1", ca });
  onTestFinished(() => void socket.destroy());
  socket.on("error", () => undefined);
  return await Promise.race([once(socket, "secureConnect").then(() => true), once(socket, "close").then(() => false)]);
}

/** Opens a connection and waits until it answers. */
async function healthy(url: string): Promise<Socket> {
  const socket = connect(Number(new URL(url).port), "127.0.0.1");
  onTestFinished(() => void socket.destroy());
  socket.write("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n");
  await once(socket, "data");
  return socket;
}

/** Returns whether a new connection is closed without an answer. */
async function isClosed(url: string): Promise<boolean> {
  const socket = connect(Number(new URL(url).port), "127.0.0.1");
  socket.on("error", () => undefined);
  socket.write("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n");
  const isAnswered = await Promise.race([
    once(socket, "data").then(() => true),
    once(socket, "close").then(() => false),
  ]);
  socket.destroy();
  return !isAnswered;
}

/** Waits until a state is reached. */
async function until(holds: () => Promise<boolean>): Promise<void> {
  while (!(await holds())) await new Promise((resolve) => setTimeout(resolve, 5));
}
