import { execFile } from "node:child_process";
import { promisify } from "node:util";
import { createClient } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";
import { credentials } from "@grpc/grpc-js";
import { describe, expect, test } from "vitest";
import { Health, HealthCheckResponse_ServingStatus as Status } from "../../gen/grpc/health/v1/health_pb.ts";
import { startServer } from "./server.ts";
import { callByGrpcJs, expectUnaryAndStreaming, transports } from "./transports.ts";

describe("one port answers", () => {
  test.each(Object.entries(transports))("%s, unary and streaming", (_name, open) =>
    expectUnaryAndStreaming(startServer, open),
  );

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
    const { principal, refusal } = await callByGrpcJs(new URL(server.url).host, credentials.createInsecure());
    expect(principal).toBe("caller");
    expect(refusal?.code).toBe(16);
    expect(refusal?.metadata.get("grpc-status-details-bin").toString()).toContain("UNAUTHENTICATED");
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
      "opencode.tool.v1.ChannelService",
      "opencode.tool.v1.CredentialService",
      "opencode.tool.v1.OperatorService",
      "opencode.tool.v1.PermissionService",
      "opencode.tool.v1.PersonService",
      "opencode.tool.v1.SessionService",
      "opencode.tool.v1.SourceService",
      "opencode.tool.v1.ToolService",
      "opencode.tool.v1.WorkerService",
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
