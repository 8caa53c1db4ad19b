import { createClient } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";
import { afterAll, beforeAll, expect, test } from "vitest";
import { ToolService } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { type Certificates, makeCertificates } from "../edge/certificates.ts";
import { freePorts } from "../store/redis-server.ts";
import { bearer } from "./clients.ts";
import { startService } from "./service.ts";

let made: Certificates;
beforeAll(async () => {
  made = await makeCertificates();
});
afterAll(() => made.remove());

const beyond = ["--listen", "0.0.0.0:0"];

test("with certificates by flag it listens beyond loopback, and wants those of clients if it was given their authority", async () => {
  const { ca, server, client } = made;
  const flags = ["--tls-cert", server.certFile, "--tls-key", server.keyFile, "--tls-client-ca", ca.certFile];
  const { url } = await startService({ flags: [...beyond, ...flags] });
  const connect = (own: { cert?: string; key?: string }) =>
    createClient(
      ToolService,
      createGrpcTransport({
        baseUrl: url.replace("0.0.0.0", "127.0.0.1"),
        nodeOptions: { ca: ca.cert, ...own },
        interceptors: [bearer("caller-token-for-tests")],
      }),
    );
  const call = { tool: "echo", input: { text: "hello" } };
  const { part } = await connect({ cert: client.cert, key: client.key }).callTool(call);
  expect(part?.state).toMatchObject({ case: "completed", value: { output: "hello" } });
  await expect(connect({}).callTool(call)).rejects.toThrow();
});

test("health at its own address needs no certificate and no Host header, serves nothing else, and answers in a drain", async () => {
  const { ca, server } = made;
  const flags = ["--tls-cert", server.certFile, "--tls-key", server.keyFile, "--tls-client-ca", ca.certFile];
  const address = `127.0.0.1:${(await freePorts(1))[0]}`;
  const service = await startService({ flags, settings: `health_listen = "${address}"` });
  await expect(fetch(`${service.url}/readyz`)).rejects.toThrow();
  for (const path of ["healthz", "readyz"]) expect((await fetch(`http://${address}/${path}`)).status).toBe(200);
  for (const path of ["", "metrics", "opencode.tool.v1.ToolService/GetServerInfo"])
    expect((await fetch(`http://${address}/${path}`)).status).toBe(404);
  expect(await service.stop()).toBe(0);
  await expect(fetch(`http://${address}/healthz`)).rejects.toThrow();
});

test("without certificates it does not start beyond loopback, unless --allow-insecure-listen is set", async () => {
  await expect(startService({ flags: beyond })).rejects.toThrow("give a certificate with --tls-cert and --tls-key");
  const { url } = await startService({ flags: [...beyond, "--allow-insecure-listen"] });
  expect((await fetch(`${url.replace("0.0.0.0", "127.0.0.1")}/readyz`)).status).toBe(200);
});
