import { once } from "node:events";
import { connect as http2Connect } from "node:http2";
import { Agent, request as httpsRequest } from "node:https";
import { connect as tcpConnect } from "node:net";
import { type ConnectionOptions, connect as tlsConnect } from "node:tls";
import { Code, ConnectError, createClient } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";
import { credentials } from "@grpc/grpc-js";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { ToolService } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { type Certificates, makeCertificates } from "./certificates.ts";
import { startServer } from "./server.ts";
import { callByGrpcJs, expectCut, expectDrained, expectUnaryAndStreaming, transports } from "./transports.ts";

const minute = 60_000;
let made: Certificates;

beforeAll(async () => {
  made = await makeCertificates();
});
afterAll(() => made.remove());

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
  test.each(Object.entries(transports))("%s, unary and streaming", (_name, open) =>
    expectUnaryAndStreaming(startTls, (url) => open(url, trusting())),
  );

  test("grpc-js", async () => {
    const server = await startTls();
    const channel = credentials.createSsl(Buffer.from(made.ca.cert));
    expect(await callByGrpcJs(named(server.url), channel)).toMatchObject({ principal: "caller" });
  });

  test("a request and a response of many packets", async () => {
    const server = await startTls({ callTool: ({ input }) => ({ part: { tool: String(input?.text) } }) });
    const text = "x".repeat(400_000);
    for (const open of Object.values(transports)) {
      const client = createClient(ToolService, open(server.url, trusting()));
      expect((await client.callTool({ tool: "echo", input: { text } })).part?.tool).toBe(text);
    }
  });

  test("a request of several records that comes over HTTP/1.1 before the last response was read", async () => {
    const text = "x".repeat(16 * 1_048_576);
    const server = await startTls({ callTool: async () => ({ part: { tool: text } }) });
    const socket = tlsConnect({ ...at(server.url), ...trusting(), ALPNProtocols: ["http/1.1"] });
    await once(socket, "secureConnect");
    const body = JSON.stringify({ tool: "echo", input: { text: "y".repeat(40_000) } });
    const head = [
      "POST /opencode.tool.v1.ToolService/CallTool HTTP/1.1",
      `host: ${new URL(server.url).host}`,
      "authorization: Bearer caller-token",
      "content-type: application/json",
      `content-length: ${body.length}`,
    ];
    const request = `${head.join("\r\n")}\r\n\r\n${body}`;
    socket.write(request);
    // The first bytes are here, and the rest waits at the server, since nobody reads it.
    await once(socket, "readable");
    socket.write(request);
    const received = await new Promise<string>((resolve) => {
      let read = "";
      const end = () => resolve(read);
      socket.on("close", end).on("data", (chunk) => {
        read += chunk;
        if (read.length > 2 * text.length) end();
      });
    });
    socket.destroy();
    expect(received.match(/HTTP\/1\.1 \d+/g)).toEqual(["HTTP/1.1 200", "HTTP/1.1 200"]);
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
    expect(await get(`${server.url}/metrics`, "evil.example")).toEqual([403, expect.stringContaining("HOST_REFUSED")]);
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

  test.each(Object.entries(transports))("fails for %s if the client trusts another authority", async (_name, open) => {
    const server = await startTls();
    const error = await createClient(ToolService, open(server.url, { ca: made.stranger.cert }))
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
    expect(await callByGrpcJs(named(server.url), pair)).toMatchObject({ principal: "caller" });
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
  test.each(Object.entries(transports))(
    "ends an open stream over %s with DRAINING, and closes without cutting it",
    (_name, open) => expectDrained(startTls, (url) => open(url, trusting())),
  );

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

  test("cuts a call that does not stop", () => expectCut(startTls, (url) => transports.gRPC(url, trusting())));
});

/** Header of a TLS record that announces more than is sent. */
const beginOfHandshake = Buffer.from([0x16, 0x03, 0x01, 0x02, 0x00, 0x01]);

/** The address by the name of the server's certificate. */
const named = (url: string) => `localhost:${new URL(url).port}`;

const at = (url: string) => ({ host: "127.0.0.1", port: Number(new URL(url).port) });

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
