import { once } from "node:events";
import { connect as http2Connect } from "node:http2";
import { Agent, request as httpsRequest } from "node:https";
import { connect as tcpConnect } from "node:net";
import { type ConnectionOptions, connect as tlsConnect } from "node:tls";
import { Code, ConnectError, createClient, type Interceptor, type Transport } from "@connectrpc/connect";
import { createConnectTransport, createGrpcTransport, createGrpcWebTransport } from "@connectrpc/connect-node";
import { credentials, loadPackageDefinition, Metadata, type ServiceError } from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { ErrorInfoSchema } from "../../gen/google/rpc/error_details_pb.ts";
import { ToolService } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { type Certificates, makeCertificates } from "./certificates.ts";
import { startServer } from "./server.ts";

const minute = 60_000;
let made: Certificates;

beforeAll(async () => {
  made = await makeCertificates();
});
afterAll(() => made.remove());

const asCaller: Interceptor = (next) => (request) => {
  request.header.set("authorization", "Bearer caller-token");
  return next(request);
};

type Trust = Pick<ConnectionOptions, "ca" | "cert" | "key">;
const transports: Record<string, (baseUrl: string, nodeOptions: Trust) => Transport> = {
  "Connect over HTTP/1.1": (baseUrl, nodeOptions) =>
    createConnectTransport({ baseUrl, nodeOptions, httpVersion: "1.1", interceptors: [asCaller] }),
  "Connect over HTTP/2": (baseUrl, nodeOptions) =>
    createConnectTransport({ baseUrl, nodeOptions, httpVersion: "2", interceptors: [asCaller] }),
  gRPC: (baseUrl, nodeOptions) => createGrpcTransport({ baseUrl, nodeOptions, interceptors: [asCaller] }),
  "gRPC-Web over HTTP/1.1": (baseUrl, nodeOptions) =>
    createGrpcWebTransport({ baseUrl, nodeOptions, httpVersion: "1.1", interceptors: [asCaller] }),
};

const trusting = () => ({ ca: made.ca.cert });
const known = () => ({ ca: made.ca.cert, cert: made.client.cert, key: made.client.key });

function startTls(
  tools: Parameters<typeof startServer>[0] = {},
  given: { requireClients?: boolean; host?: string; headersMs?: number; idleMs?: number } = {},
) {
  const { cert, key } = made.server;
  const tls = { cert, key, clientCa: given.requireClients ? made.ca.cert : undefined };
  const listen = { host: given.host ?? "127.0.0.1", port: 0 };
  const { requireClients: _, host: __, ...times } = given;
  return startServer(tools, { config: { tls, listen }, ...times });
}

describe("one port answers in TLS", () => {
  for (const [name, open] of Object.entries(transports)) {
    test(`${name}, unary and streaming`, async () => {
      const server = await startTls({
        async *watchSession() {
          yield { lastSeq: 1n };
          yield { lastSeq: 2n };
        },
      });
      expect(server.url).toMatch(/^https:/);
      const client = createClient(ToolService, open(server.url, trusting()));
      expect((await client.getServerInfo({})).principal).toBe("caller");
      const seen: bigint[] = [];
      for await (const { lastSeq } of client.watchSession({ sessionId: "ses_1" })) seen.push(lastSeq);
      expect(seen).toEqual([1n, 2n]);
    });
  }

  test("grpc-js", async () => {
    const server = await startTls();
    expect(await callByGrpcJs(server.url, credentials.createSsl(Buffer.from(made.ca.cert)))).toBe("caller");
  });

  test("a request and a response of many packets", async () => {
    const server = await startTls({ callTool: ({ input }) => ({ part: { tool: String(input?.text) } }) });
    const text = "x".repeat(400_000);
    for (const open of Object.values(transports)) {
      const client = createClient(ToolService, open(server.url, trusting()));
      expect((await client.callTool({ tool: "echo", input: { text } })).part?.tool).toBe(text);
    }
  });

  test("connections from outside the loopback interface", async () => {
    const server = await startTls({}, { host: "0.0.0.0" });
    const url = server.url.replace("0.0.0.0", "127.0.0.1");
    const client = createClient(ToolService, createGrpcTransport({ baseUrl: url, nodeOptions: trusting() }));
    await expect(client.getServerInfo({})).rejects.toMatchObject({ code: Code.Unauthenticated });
  });

  test("the same hosts as without TLS", async () => {
    const server = await startTls();
    expect(await get(`${server.url}/readyz`, "localhost")).toEqual([200, "ok\n"]);
    expect(await get(`${server.url}/readyz`, "evil.example")).toEqual([403, expect.stringContaining("HOST_REFUSED")]);
  });
});

describe("the handshake", () => {
  test.each([
    [["h2", "http/1.1"], "h2"],
    [["http/1.1", "h2"], "h2"],
    [["http/1.1"], "http/1.1"],
    [[], false],
  ])("with a client that offers %j agrees on %s", async (ALPNProtocols, agreed) => {
    const server = await startTls();
    const socket = tlsConnect({ ...at(server.url), ...trusting(), ALPNProtocols });
    await once(socket, "secureConnect");
    expect(socket.alpnProtocol).toBe(agreed);
    socket.destroy();
  });

  test("refuses a client that offers neither", async () => {
    const server = await startTls();
    expect(await refusal({ ...at(server.url), ...trusting(), ALPNProtocols: ["spdy/3"] })).toBe(
      "ERR_SSL_TLSV1_ALERT_NO_APPLICATION_PROTOCOL",
    );
  });

  test("refuses TLS 1.1 and accepts 1.2 and 1.3", async () => {
    const server = await startTls();
    // Without this option the client's OpenSSL refuses TLS 1.1 itself.
    const options = { ...at(server.url), ...trusting(), ciphers: "DEFAULT@SECLEVEL=0" };
    const old = { minVersion: "TLSv1.1", maxVersion: "TLSv1.1" } as const;
    expect(await refusal({ ...options, ...old })).toBe("ERR_SSL_TLSV1_ALERT_PROTOCOL_VERSION");
    for (const version of ["TLSv1.2", "TLSv1.3"] as const) {
      const socket = tlsConnect({ ...options, minVersion: version, maxVersion: version });
      await once(socket, "secureConnect");
      expect(socket.getProtocol()).toBe(version);
      socket.destroy();
    }
  });

  test.each(Object.keys(transports))("fails for %s if the client trusts another authority", async (name) => {
    const server = await startTls();
    const open = transports[name];
    const transport = open?.(server.url, { ca: made.stranger.cert });
    if (transport === undefined) throw new Error(`no transport ${name}`);
    const error = await createClient(ToolService, transport)
      .getServerInfo({})
      .catch((cause) => ConnectError.from(cause));
    expect(error).toMatchObject({ cause: { code: "UNABLE_TO_VERIFY_LEAF_SIGNATURE" } });
  });
});

describe("a server that requires client certificates", () => {
  test("admits a certificate of the authority, by each protocol, and still requires a token", async () => {
    const server = await startTls({}, { requireClients: true });
    for (const open of Object.values(transports)) {
      const client = createClient(ToolService, open(server.url, known()));
      expect((await client.getServerInfo({})).principal).toBe("caller");
    }
    const tokenless = createGrpcTransport({ baseUrl: server.url, nodeOptions: known() });
    await expect(createClient(ToolService, tokenless).getServerInfo({})).rejects.toMatchObject({
      code: Code.Unauthenticated,
    });
    const { ca, client } = made;
    const pair = credentials.createSsl(Buffer.from(ca.cert), Buffer.from(client.key), Buffer.from(client.cert));
    expect(await callByGrpcJs(server.url, pair)).toBe("caller");
  });

  for (const version of ["TLSv1.2", "TLSv1.3"] as const) {
    test(`refuses no certificate and one of another authority before any request, in ${version}`, async () => {
      const entered: string[] = [];
      const server = await startTls(
        {
          listTools() {
            entered.push("listTools");
            return {};
          },
        },
        { requireClients: true },
      );
      const { ca, stranger } = made;
      for (const trust of [{ ca: ca.cert }, { ca: ca.cert, cert: stranger.cert, key: stranger.key }]) {
        const socket = tlsConnect({ ...at(server.url), ...trust, maxVersion: version, minVersion: version });
        const chunks: Buffer[] = [];
        socket.on("error", () => undefined).on("data", (chunk) => chunks.push(chunk));
        socket.write("GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        await new Promise((resolve) => socket.once("close", resolve));
        expect(Buffer.concat(chunks).toString()).toBe("");
        for (const open of Object.values(transports)) {
          await expect(createClient(ToolService, open(server.url, trust)).listTools({})).rejects.toThrow();
        }
      }
      expect(entered).toEqual([]);
    });
  }
});

describe("a misbehaving client", () => {
  test("is disconnected if it speaks plain HTTP", async () => {
    const server = await startTls();
    const plain = server.url.replace("https:", "http:");
    await expect(fetch(`${plain}/healthz`)).rejects.toThrow("fetch failed");
    const session = http2Connect(plain);
    session.on("error", () => undefined);
    await once(session, "close");
    const grpc = createClient(ToolService, createGrpcTransport({ baseUrl: plain }));
    await expect(grpc.getServerInfo({})).rejects.toThrow();
    expect(await get(`${server.url}/healthz`, "localhost")).toEqual([200, "ok\n"]);
  });

  test("is cut if it does not begin the handshake, does not end it, or sends nothing after it", async () => {
    const server = await startTls({}, { headersMs: 100, idleMs: 100 });
    const silent = tcpConnect(at(server.url)).resume();
    const half = tcpConnect(at(server.url)).resume();
    half.write(beginOfHandshake);
    const mute = tlsConnect({ ...at(server.url), ...trusting() }).resume();
    for (const socket of [silent, half, mute]) socket.on("error", () => undefined);
    await Promise.all([silent, half, mute].map((socket) => once(socket, "close")));
    expect(await get(`${server.url}/healthz`, "localhost")).toEqual([200, "ok\n"]);
  });

  test("gets no HTTP/2 that the handshake did not agree on", async () => {
    const server = await startTls();
    const socket = tlsConnect({ ...at(server.url), ...trusting() });
    socket.write("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    expect(Buffer.concat(await socket.toArray()).toString()).toContain("403 Forbidden");
  });
});

describe("a server that drains", () => {
  for (const [name, open] of Object.entries(transports)) {
    test(`ends an open stream over ${name} with DRAINING, and closes without cutting it`, async () => {
      const server = await startTls({
        async *watchSession(_request, { signal }) {
          yield { lastSeq: 1n };
          await once(signal, "abort");
          throw signal.reason;
        },
      });
      const messages = createClient(ToolService, open(server.url, trusting()))
        .watchSession({ sessionId: "ses_1" })
        [Symbol.asyncIterator]();
      expect((await messages.next()).value?.lastSeq).toBe(1n);
      const closed = server.close(minute);
      const error = ConnectError.from(await messages.next().catch((cause) => cause));
      expect(error.code).toBe(Code.Unavailable);
      expect(error.findDetails(ErrorInfoSchema)).toMatchObject([{ reason: "DRAINING" }]);
      await closed;
      expect(await server.logged()).toBe("");
    });
  }

  test("does not wait for clients that are silent, in the middle of the handshake, or idle", async () => {
    const server = await startTls({}, { headersMs: minute });
    const agent = new Agent({ keepAlive: true, ...trusting() });
    const idle = httpsRequest(`${server.url}/healthz`, { agent }).end();
    (await once(idle, "response"))[0].resume();
    const silent = tcpConnect(at(server.url)).resume();
    const half = tcpConnect(at(server.url)).resume();
    half.write(beginOfHandshake);
    const mute = tlsConnect({ ...at(server.url), ...trusting() }).resume();
    for (const socket of [silent, half, mute]) socket.on("error", () => undefined);
    await once(mute, "secureConnect");
    await server.close(minute);
    agent.destroy();
    for (const socket of [silent, half, mute]) socket.destroy();
    expect(await server.logged()).toBe("");
  });

  test("cuts a call that does not stop", async () => {
    const never = Promise.withResolvers<void>();
    const entered = Promise.withResolvers<void>();
    const server = await startTls({
      async getServerInfo() {
        entered.resolve();
        await never.promise;
        return {};
      },
    });
    const client = createClient(ToolService, createGrpcTransport(withToken(server.url)));
    const call = client.getServerInfo({}).catch((cause) => ConnectError.from(cause).code);
    await entered.promise;
    await server.close(1);
    expect(await call).toBe(Code.Canceled);
    expect(await server.logged()).toContain("connections were cut");
    never.resolve();
  });
});

/** Header of a TLS record that announces more than is sent. */
const beginOfHandshake = Buffer.from([0x16, 0x03, 0x01, 0x02, 0x00, 0x01]);

const at = (url: string) => ({ host: "127.0.0.1", port: Number(new URL(url).port) });

const withToken = (baseUrl: string) => ({ baseUrl, nodeOptions: trusting(), interceptors: [asCaller] });

/** Returns the code with which the client's OpenSSL reports the server's refusal. */
async function refusal(options: ConnectionOptions): Promise<unknown> {
  const socket = tlsConnect(options);
  const [error] = await once(socket, "error");
  return error.code;
}

function get(url: string, host: string): Promise<[status: number | undefined, body: string]> {
  return new Promise((resolve, reject) => {
    // Without `servername`, Node looks for the Host in the certificate.
    const options = { headers: { host }, ...trusting(), servername: "localhost", agent: false };
    const request = httpsRequest(url, options, async (response) => {
      resolve([response.statusCode, Buffer.concat(await response.toArray()).toString()]);
    });
    request.on("error", reject).end();
  });
}

async function callByGrpcJs(url: string, channel: ReturnType<typeof credentials.createSsl>): Promise<string> {
  const definition = loadSync("opencode/tool/v1/tool_service.proto", { includeDirs: ["proto"] });
  // grpc-js types definitions loaded at run time as a tree of unknowns.
  const loaded = loadPackageDefinition(definition) as unknown as GrpcJsPackage;
  const client = new loaded.opencode.tool.v1.ToolService(`localhost:${new URL(url).port}`, channel);
  const metadata = new Metadata();
  metadata.set("authorization", "Bearer caller-token");
  try {
    return await new Promise((resolve, reject) => {
      client.getServerInfo({}, metadata, (error, info) => (error === null ? resolve(info.principal) : reject(error)));
    });
  } finally {
    client.close();
  }
}

interface GrpcJsPackage {
  opencode: { tool: { v1: { ToolService: new (address: string, credentials: object) => GrpcJsClient } } };
}

interface GrpcJsClient {
  getServerInfo(
    request: object,
    metadata: Metadata,
    done: (error: ServiceError | null, value: { principal: string }) => void,
  ): void;
  close(): void;
}
