import { execFile } from "node:child_process";
import { promisify } from "node:util";
import { createClient, type Interceptor, type Transport } from "@connectrpc/connect";
import { createConnectTransport, createGrpcTransport, createGrpcWebTransport } from "@connectrpc/connect-node";
import { credentials, loadPackageDefinition, Metadata, type ServiceError } from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";
import { describe, expect, test } from "vitest";
import { Health, HealthCheckResponse_ServingStatus as Status } from "../../gen/grpc/health/v1/health_pb.ts";
import { ToolService } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { startServer } from "./server.ts";

const asCaller: Interceptor = (next) => (request) => {
  request.header.set("authorization", "Bearer caller-token");
  return next(request);
};

const transports: Record<string, (baseUrl: string) => Transport> = {
  "Connect over HTTP/1.1": (baseUrl) =>
    createConnectTransport({ baseUrl, httpVersion: "1.1", interceptors: [asCaller] }),
  "Connect over HTTP/2": (baseUrl) => createConnectTransport({ baseUrl, httpVersion: "2", interceptors: [asCaller] }),
  "gRPC over HTTP/2": (baseUrl) => createGrpcTransport({ baseUrl, interceptors: [asCaller] }),
  "gRPC-Web over HTTP/1.1": (baseUrl) =>
    createGrpcWebTransport({ baseUrl, httpVersion: "1.1", interceptors: [asCaller] }),
  "gRPC-Web over HTTP/2": (baseUrl) => createGrpcWebTransport({ baseUrl, httpVersion: "2", interceptors: [asCaller] }),
};

describe("one port answers", () => {
  for (const [name, open] of Object.entries(transports)) {
    test(`${name}, unary and streaming`, async () => {
      const server = await startServer({
        async *watchSession() {
          yield { lastSeq: 1n };
          yield { lastSeq: 2n };
        },
      });
      const client = createClient(ToolService, open(server.url));
      expect((await client.getServerInfo({})).principal).toBe("caller");
      const seen: bigint[] = [];
      for await (const { lastSeq } of client.watchSession({ sessionId: "ses_1" })) seen.push(lastSeq);
      expect(seen).toEqual([1n, 2n]);
    });
  }

  test("JSON by fetch", async () => {
    const server = await startServer();
    const response = await fetch(`${server.url}/opencode.tool.v1.ToolService/GetServerInfo`, {
      method: "POST",
      headers: { "content-type": "application/json", authorization: "Bearer watcher-token" },
      body: "{}",
    });
    expect(response.status).toBe(200);
    expect(await response.json()).toMatchObject({ principal: "watcher", roles: ["watcher"] });
  });

  test("GET is refused, since a page could send one without a preflight", async () => {
    const server = await startServer();
    const url = `${server.url}/opencode.tool.v1.ToolService/GetServerInfo?encoding=json&message=%7B%7D&connect=v1`;
    expect((await fetch(url, { headers: { authorization: "Bearer caller-token" } })).status).toBe(405);
  });

  test("grpc-js, with metadata and the details of an error", async () => {
    const server = await startServer();
    const definition = loadSync("opencode/tool/v1/tool_service.proto", { includeDirs: ["proto"] });
    // grpc-js types definitions loaded at run time as a tree of unknowns.
    const loaded = loadPackageDefinition(definition) as unknown as GrpcJsPackage;
    const client = new loaded.opencode.tool.v1.ToolService(new URL(server.url).host, credentials.createInsecure());
    const metadata = new Metadata();
    metadata.set("authorization", "Bearer admin-token");
    const info = await new Promise<{ principal: string }>((resolve, reject) => {
      client.getServerInfo({}, metadata, (error, value) => (error === null ? resolve(value) : reject(error)));
    });
    expect(info.principal).toBe("admin");
    const error = await new Promise<ServiceError | null>((resolve) =>
      client.getServerInfo({}, new Metadata(), resolve),
    );
    expect(error?.code).toBe(16);
    expect(error?.metadata.get("grpc-status-details-bin").toString()).toContain("UNAUTHENTICATED");
    client.close();
  });

  test("buf curl, which learns the contract by reflection", async () => {
    const server = await startServer();
    const curl = async (...args: string[]) =>
      (await promisify(execFile)("npx", ["buf", "curl", "--http2-prior-knowledge", "--protocol", "grpc", ...args]))
        .stdout;
    const methods = await curl("--list-methods", server.url);
    expect(methods).toContain("opencode.tool.v1.ToolService/ExecuteTool");
    expect(methods).toContain("opencode.tool.v1.PermissionService/RespondToPermission");
    const rpc = `${server.url}/opencode.tool.v1.ToolService/GetServerInfo`;
    expect(JSON.parse(await curl("-H", "authorization: Bearer caller-token", rpc))).toMatchObject({ version: "test" });
    const health = JSON.parse(await curl("-d", "{}", `${server.url}/grpc.health.v1.Health/Check`));
    expect(health).toEqual({ status: "SERVING" });
  });
});

describe("health needs no token", () => {
  test("knows the server and each of its services, and no others", async () => {
    const server = await startServer();
    const client = createClient(Health, createGrpcTransport({ baseUrl: server.url }));
    expect((await client.check({})).status).toBe(Status.SERVING);
    expect((await client.check({ service: "opencode.tool.v1.ToolService" })).status).toBe(Status.SERVING);
    await expect(client.check({ service: "no.Such" })).rejects.toThrow(/\[not_found\] service no.Such/);
    const names = Object.keys((await client.list({})).statuses);
    expect(names.toSorted()).toEqual([
      "",
      "opencode.tool.v1.AgentService",
      "opencode.tool.v1.CredentialService",
      "opencode.tool.v1.PermissionService",
      "opencode.tool.v1.SessionService",
      "opencode.tool.v1.ToolService",
    ]);
  });

  test("a replica whose policy differs from that of others is not ready, and readyz says why", async () => {
    const server = await startServer({}, { agrees: () => false });
    const ready = await fetch(`${server.url}/readyz`);
    expect([ready.status, await ready.text()]).toEqual([503, expect.stringContaining("policy mismatch")]);
  });

  test("a store that does not answer is not serving, and readyz says why while healthz stays ok", async () => {
    const server = await startServer({}, { ready: async () => Promise.reject(new Error("gone")) });
    const client = createClient(Health, createGrpcTransport({ baseUrl: server.url }));
    expect((await client.check({})).status).toBe(Status.NOT_SERVING);
    const ready = await fetch(`${server.url}/readyz`);
    expect([ready.status, await ready.text()]).toEqual([503, expect.stringContaining("the store cannot write")]);
    expect((await fetch(`${server.url}/healthz`)).status).toBe(200);
  });
});

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
