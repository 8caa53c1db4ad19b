import { createClient } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";
import { afterAll, beforeAll, expect, test } from "vitest";
import { ToolService } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { type Certificates, makeCertificates } from "../edge/certificates.ts";
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

test("without certificates it does not start beyond loopback, unless --allow-insecure-listen is set", async () => {
  await expect(startService({ flags: beyond })).rejects.toThrow("give a certificate with --tls-cert and --tls-key");
  const { url } = await startService({ flags: [...beyond, "--allow-insecure-listen"] });
  expect((await fetch(`${url.replace("0.0.0.0", "127.0.0.1")}/readyz`)).status).toBe(200);
});
