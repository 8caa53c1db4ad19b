import { Code, createClient } from "@connectrpc/connect";
import { createConnectTransport, createGrpcTransport } from "@connectrpc/connect-node";
import { afterAll, beforeAll, expect, onTestFinished, test } from "vitest";
import { SessionService } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import { ToolService } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { defineTool, serve, z } from "../../src/bodies/sdk/worker.ts";
import { type Certificates, makeCertificates, type Pair } from "../edge/certificates.ts";
import { freePorts } from "../store/redis-server.ts";
import { bearer, refusal } from "./clients.ts";
import { read } from "./reading.ts";
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

test("a program with a client certificate that an entry names calls without a token, and no other certificate does", async () => {
  const { ca, server, stranger, make } = made;
  const builder = "spiffe://corp.example/ns/agents/builder";
  const entry = (san: string, rest: string) => `[[client_cert]]\nsan = "${san}"\n${rest}\n`;
  const settings = [
    `tls_cert = "${server.certFile}"\ntls_key = "${server.keyFile}"\ntls_client_ca = "${ca.certFile}"\n[agent.ci]\n`,
    entry("spiffe://corp.example/ns/agents/*", 'agents = ["ci"]'),
    entry("worker.corp.example", 'roles = ["worker"]\ntools = ["deploy"]'),
  ].join("");
  const service = await startService({ settings });
  const connect = ({ cert, key }: Pick<Pair, "cert" | "key">, httpVersion: "1.1" | "2", header = new Headers()) =>
    createConnectTransport({
      ...{ baseUrl: service.url, httpVersion, nodeOptions: { ca: ca.cert, cert, key } },
      interceptors: [
        (next) => (request) => {
          for (const [name, value] of header) request.header.set(name, value);
          return next(request);
        },
      ],
    });
  const infoOf = (...of: Parameters<typeof connect>) => createClient(ToolService, connect(...of)).getServerInfo({});
  const agent = await make("agent", `subjectAltName=DNS:other.example,URI:${builder}`);
  const worker = await make("worker", "subjectAltName=DNS:Worker.corp.example");
  for (const version of ["1.1", "2"] as const) {
    const agents = { principal: `cert:${builder}`, roles: ["caller"], agents: ["ci"] };
    expect(await infoOf(agent, version)).toMatchObject(agents);
    expect(await infoOf(worker, version)).toMatchObject({ principal: "cert:worker.corp.example", roles: ["worker"] });
    // A token that is sent decides, right or wrong, and a page that makes a browser send the certificate gets nothing by it.
    const sent = (name: string, value: string) => infoOf(agent, version, new Headers({ [name]: value }));
    expect(await sent("authorization", "Bearer watcher-token-for-tests")).toMatchObject({ principal: "watcher" });
    for (const [name, value] of [
      ["authorization", "Bearer unknown"],
      ["cookie", "a=b"],
      ["origin", "https://evil.example"],
      ["sec-fetch-site", "cross-site"],
    ] as const)
      expect((await refusal(sent(name, value))).code).toBe(Code.Unauthenticated);
  }
  const own = "subjectAltName=URI:";
  const bad: Record<string, Promise<Pair>> = {
    "a name of nobody": make("other", "subjectAltName=URI:spiffe://corp.example/ns/other/builder"),
    "a name that begins like one": make("longer", "subjectAltName=DNS:worker.corp.example.evil.example"),
    "a name that ends like one": make("before", "subjectAltName=DNS:evil-worker.corp.example"),
    "a pattern as name": make("pattern", "subjectAltName=DNS:*.corp.example"),
    "another trust domain": make("domain", `${own}spiffe://evil.example/spiffe://corp.example/ns/agents/builder`),
    "two URIs": make("two", `${own}${builder},URI:spiffe://corp.example/ns/agents/other`),
    "a name within another": make("within", `subjectAltName=@names\n[names]\nURI.1=x:y, URI:${builder}`),
    "a name within a DNS name": make("hidden", `subjectAltName=@names\n[names]\nDNS.1=x, DNS:worker.corp.example, y`),
    "an e-mail address": make("mail", "subjectAltName=email:builder@worker.corp.example"),
    "no name but the subject": make("worker.corp.example", "basicConstraints=CA:FALSE"),
    "a name for servers alone": make("serves", `${own}${builder}\nextendedKeyUsage=serverAuth`),
    "another authority": make("foreign", `${own}${builder}`, stranger),
    "its own authority": make("alone", `${own}${builder}`, agent),
  };
  const accepted: string[] = [];
  for (const [why, pair] of Object.entries(bad))
    for (const version of ["1.1", "2"] as const) {
      const error = await infoOf(await pair, version).then(
        () => undefined,
        (cause) => cause,
      );
      if (error === undefined) accepted.push(`${why}, HTTP/${version}`);
    }
  expect(accepted).toEqual([]);

  const deploy = defineTool({
    ...{ name: "deploy", description: "Deploys.", input: z.object({}), execute: () => ({ output: "deployed" }) },
  });
  const stopping = new AbortController();
  onTestFinished(() => stopping.abort());
  const { cert, key } = worker;
  const log = () => undefined;
  const served = serve([deploy], { url: service.url, ca: ca.cert, cert, key, log, signal: stopping.signal });
  const asCaller = connect(agent, "2", new Headers({ authorization: "Bearer caller-token-for-tests" }));
  const { callTool } = createClient(ToolService, asCaller);
  await expect
    .poll(() =>
      createClient(ToolService, asCaller)
        .listTools({})
        .then(({ tools }) => tools.map(({ name }) => name)),
    )
    .toContain("deploy");
  expect((await callTool({ tool: "deploy", agent: "free", input: {} })).part?.state).toMatchObject({
    value: { output: "deployed" },
  });

  // A reload without the entry ends the streams of its certificates.
  const transport = connect(agent, "2");
  const { session } = await createClient(SessionService, transport).createSession({ agent: "ci" });
  const call = { sessionId: session?.id ?? "", tool: "bash", input: { command: "true" } };
  const stream = read(createClient(ToolService, transport).executeTool(call));
  await stream.until("permissionAsked");
  await service.configure(settings.replace("/agents/*", "/others/*"));
  process.kill(service.pid ?? 0, "SIGHUP");
  expect(await refusal(stream.until("output"))).toMatchObject({ reason: "UNAUTHENTICATED" });
  expect((await refusal(infoOf(agent, "1.1"))).code).toBe(Code.Unauthenticated);
  stopping.abort();
  await served;
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
