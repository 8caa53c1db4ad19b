import { once } from "node:events";
import { request as http1Request } from "node:http";
import { connect as http2Connect } from "node:http2";
import { connect } from "node:net";
import { describe, expect, onTestFinished, test } from "vitest";
import { startServer } from "./server.ts";

const rpc = "/opencode.tool.v1.ToolService/GetServerInfo";

describe("the Host header", () => {
  for (const host of ["localhost:1", "LOCALHOST", "127.0.0.1:80", "[::1]:80", "tools.example:443", "gate.example"]) {
    test(`${host} is answered`, async () => {
      const config = { hosts: ["tools.example"], publicUrl: "https://gate.example" };
      const server = await startServer({}, { config });
      expect((await get(`${server.url}/healthz`, host)).status).toBe(200);
    });
  }

  for (const host of [
    "evil.example",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "user@localhost",
    "[::2]",
    "localhost:65536",
  ]) {
    test(`"${host}" is answered by the probes of health alone`, async () => {
      const server = await startServer();
      for (const path of ["/healthz", "/readyz"]) expect((await get(`${server.url}${path}`, host)).status).toBe(200);
    });
    for (const path of [rpc, "/metrics", "/", "/healthz/x", "/healthz?x"]) {
      test(`"${host}" is refused at ${path}`, async () => {
        const server = await startServer();
        const { status, body } = await get(`${server.url}${path}`, host);
        expect(status).toBe(403);
        expect(JSON.parse(body)).toMatchObject({
          code: "permission_denied",
          details: [{ type: "google.rpc.ErrorInfo", debug: { reason: "HOST_REFUSED", metadata: { host } } }],
        });
      });
    }
  }

  test("a request that names no host is refused", async () => {
    const server = await startServer();
    for (const head of ["GET /metrics HTTP/1.1\r\nHost: \r\nConnection: close", "GET /metrics HTTP/1.0"]) {
      const socket = connect(Number(new URL(server.url).port), "127.0.0.1");
      socket.write(`${head}\r\n\r\n`);
      expect(Buffer.concat(await socket.toArray()).toString()).toContain("HOST_REFUSED");
    }
  });

  test("the address that a connection reached is answered, as Prometheus names a replica, and no other address", async () => {
    const server = await startServer({}, { config: { listen: { host: "0.0.0.0", port: 0 } } });
    const reached = `http://127.0.0.2:${new URL(server.url).port}`;
    expect((await get(`${reached}/metrics`, "127.0.0.2:7420")).status).toBe(401);
    expect((await get(`${reached}/metrics`, "127.0.0.3:7420")).status).toBe(403);
  });

  test("two Host headers are refused, also if each is known", async () => {
    const server = await startServer();
    const ask = async (hosts: string) => {
      const socket = connect(Number(new URL(server.url).port), "127.0.0.1");
      socket.write(`GET /healthz HTTP/1.1\r\n${hosts}Connection: close\r\n\r\n`);
      return Buffer.concat(await socket.toArray()).toString();
    };
    expect(await ask("Host: localhost\r\nhost: localhost\r\n")).toContain("HOST_REFUSED");
    expect(await ask("Host: localhost\r\n")).toContain("200 OK");
  });

  test("an unknown :authority is refused over HTTP/2, also next to a known Host", async () => {
    const server = await startServer();
    const session = http2Connect(server.url);
    const stream = session.request({ ":path": "/metrics", ":authority": "evil.example", host: "localhost" });
    const [headers] = await once(stream, "response");
    expect(headers[":status"]).toBe(403);
    session.destroy();
  });
});

describe("pages of other origins", () => {
  const preflight = (url: string, origin: string) =>
    fetch(url + rpc, { method: "OPTIONS", headers: { origin, "access-control-request-method": "POST" } });

  test("a configured origin may call and read the response", async () => {
    const server = await startServer({}, { config: { origins: ["https://console.example"] } });
    const answer = await preflight(server.url, "https://console.example");
    expect(answer.status).toBe(204);
    expect(answer.headers.get("access-control-allow-origin")).toBe("https://console.example");
    expect(answer.headers.get("access-control-allow-headers")?.toLowerCase()).toContain("authorization");
    expect(answer.headers.get("access-control-allow-headers")?.toLowerCase()).toContain("connect-protocol-version");
    const call = await fetch(server.url + rpc, {
      method: "POST",
      headers: {
        origin: "https://console.example",
        "content-type": "application/json",
        authorization: "Bearer caller-token",
      },
      body: "{}",
    });
    expect([call.status, call.headers.get("access-control-allow-origin"), call.headers.get("vary")]).toEqual([
      200,
      "https://console.example",
      "origin",
    ]);
  });

  for (const origin of ["https://console.example.evil.example", "http://console.example", "null"]) {
    test(`${origin} is refused without CORS headers`, async () => {
      const server = await startServer({}, { config: { origins: ["https://console.example"] } });
      const answer = await preflight(server.url, origin);
      expect([answer.status, answer.headers.get("access-control-allow-origin")]).toEqual([403, null]);
    });
  }

  test("no origin may call if none is configured", async () => {
    const server = await startServer();
    const answer = await preflight(server.url, "http://localhost:3000");
    expect([answer.status, answer.headers.get("access-control-allow-origin")]).toEqual([403, null]);
  });
});

describe("a misbehaving client", () => {
  test("is cut when its request headers do not end", async () => {
    const server = await startServer({}, { headersMs: 100 });
    const socket = connect(Number(new URL(server.url).port), "127.0.0.1");
    socket.write("POST / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ");
    const chunks: Buffer[] = [];
    socket.on("data", (chunk) => chunks.push(chunk));
    await once(socket, "close");
    expect(Buffer.concat(chunks).toString()).toContain("408 Request Timeout");
  });

  test("is cut when it sends nothing, or only the beginning of a preface", async () => {
    const server = await startServer({}, { headersMs: 100, idleMs: 100 });
    const sockets = ["", "PR", "PRI * HTTP", "POS"].map((begin) => {
      const socket = connect(Number(new URL(server.url).port), "127.0.0.1");
      if (begin !== "") socket.write(begin);
      return socket.resume();
    });
    await Promise.all(sockets.map((socket) => once(socket, "close")));
    expect((await fetch(`${server.url}/healthz`)).status).toBe(200);
  });

  test("is cut when no request follows its first one, over HTTP/2 when there is no traffic", async () => {
    const server = await startServer({}, { idleMs: 100, http2IdleMs: 100 });
    const socket = connect(Number(new URL(server.url).port), "127.0.0.1");
    socket.write("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n");
    expect(Buffer.concat(await socket.toArray()).toString()).toContain("200 OK");
    const session = http2Connect(server.url);
    const request = session.request({ ":path": "/healthz" });
    request.resume();
    await Promise.all([once(request, "end"), once(session, "close")]);
  });

  test("keeps its connections while it may be silent for an hour", async () => {
    const server = await startServer({}, { headersMs: 3_600_000, idleMs: 3_600_000 });
    const sockets = ["", "PR", "PRI * HTTP", "POS", "POST / HTTP/1.1\r\nHost: localhost\r\nX-Slow: "].map((begin) => {
      const socket = connect(Number(new URL(server.url).port), "127.0.0.1").resume();
      onTestFinished(() => void socket.destroy());
      if (begin !== "") socket.write(begin);
      return socket;
    });
    // As long as the other tests give it.
    await new Promise((resolve) => setTimeout(resolve, 200));
    expect(sockets.map(({ closed }) => closed)).toEqual(sockets.map(() => false));
  });

  test("may open a connection in advance: the time for headers begins with the first byte", async () => {
    const server = await startServer({}, { headersMs: 50 });
    const socket = connect(Number(new URL(server.url).port), "127.0.0.1");
    await once(socket, "connect");
    await new Promise((resolve) => setTimeout(resolve, 200));
    socket.write("GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    expect(Buffer.concat(await socket.toArray()).toString()).toContain("200 OK");
  });

  test("is cut without an answer when it begins with neither HTTP/1.1 nor HTTP/2", async () => {
    const server = await startServer();
    for (const begin of ["INVALID CONNECTION PREFACE\r\n\r\n", "\0\x16\x03\x01", "PRI * HTTP/3.0\r\n\r\n"]) {
      const socket = connect(Number(new URL(server.url).port), "127.0.0.1");
      socket.write(begin, "latin1");
      expect(Buffer.concat(await socket.toArray()).toString()).toBe("");
    }
  });

  test("may send an empty line before its request", async () => {
    const server = await startServer();
    const socket = connect(Number(new URL(server.url).port), "127.0.0.1");
    socket.write("\r\nGET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    expect(Buffer.concat(await socket.toArray()).toString()).toContain("200 OK");
  });

  test("does not affect others by breaking off or by sending garbage", async () => {
    const server = await startServer();
    const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    const begins = [
      "",
      "P",
      "PRI",
      preface,
      `${preface}${"\xff".repeat(64)}`,
      "POST / HTTP/1.1\r\n",
      "\0\x16\x03\x01nonsense",
    ];
    for (const begin of begins) {
      const socket = connect(Number(new URL(server.url).port), "127.0.0.1");
      socket.on("error", () => undefined);
      await new Promise((resolve) => socket.write(begin, "latin1", resolve));
      // An answered request shows that the server has processed the bytes sent before.
      expect((await fetch(`${server.url}/healthz`)).status).toBe(200);
      socket.resetAndDestroy();
      expect((await fetch(`${server.url}/healthz`)).status).toBe(200);
    }
  });
});

function get(url: string, host: string): Promise<{ status: number | undefined; body: string }> {
  return new Promise((resolve, reject) => {
    const request = http1Request(url, { headers: { host } }, async (response) => {
      const chunks = await response.toArray();
      resolve({ status: response.statusCode, body: Buffer.concat(chunks).toString() });
    });
    request.on("error", reject).end();
  });
}
