import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { type Certificates, makeCertificates } from "../edge/certificates.ts";
import { startServer } from "../edge/server.ts";
import { toolgate } from "./toolgate.ts";

let made: Certificates;
let folder: string;
let environment: Record<string, string>;

beforeAll(async () => {
  made = await makeCertificates();
  folder = await mkdtemp(join(tmpdir(), "toolgate-cli-"));
  environment = { TOOLGATE_DATA: folder, TOOLGATE_TOKEN: "caller-token" };
});
afterAll(async () => {
  await made.remove();
  await rm(folder, { recursive: true });
});

function startTls({ wantsClients = false } = {}) {
  const { cert, key } = made.server;
  const clientCa = wantsClients ? made.ca.cert : undefined;
  const listTools = () => ({ tools: [{ name: "echo", description: "Return the text." }] });
  return startServer({ listTools }, { config: { tls: { cert, key, clientCa } } });
}

test("a private authority is trusted by --ca or TOOLGATE_CA, and otherwise the message says so", async () => {
  const { url } = await startTls();
  const ca = made.ca.certFile;
  expect(await toolgate(["tools", "--server", url, "--ca", ca], environment)).toMatchObject({ code: 0 });
  expect(await toolgate(["tools", "--server", url], { ...environment, TOOLGATE_CA: ca })).toMatchObject({ code: 0 });
  for (const trust of [[], ["--ca", made.stranger.certFile]]) {
    const { code, stdout, stderr } = await toolgate(["tools", "--server", url, ...trust], environment);
    expect({ code, stdout }).toEqual({ code: 6, stdout: "" });
    expect(stderr).toContain(`the certificate of ${url} is not trusted`);
    expect(stderr).toContain("next: name the authority that signed it with --ca FILE");
  }
});

test("a client certificate is shown where one is wanted, and otherwise the message says so", async () => {
  const { url } = await startTls({ wantsClients: true });
  const args = ["tools", "--server", url, "--ca", made.ca.certFile];
  const { client, stranger } = made;
  expect(await toolgate([...args, "--cert", client.certFile, "--key", client.keyFile], environment)).toMatchObject({
    code: 0,
  });
  const refused: [string[], number, string][] = [
    [[], 6, "requires a client certificate"],
    [["--cert", stranger.certFile, "--key", stranger.keyFile], 6, "add one that it trusts"],
    [["--cert", client.certFile, "--key", stranger.keyFile], 6, "the client certificate cannot be used"],
    [["--cert", client.certFile], 2, "give both --cert and --key"],
    [["--cert", "/no/such/cert", "--key", client.keyFile], 2, "/no/such/cert cannot be read"],
  ];
  for (const [more, code, words] of refused) {
    const end = await toolgate([...args, ...more], environment);
    expect(end).toMatchObject({ code, stdout: "" });
    expect(end.stderr).toContain(words);
  }
});

test("http instead of https, and the reverse, is reported", async () => {
  const [{ url }, clear] = [await startTls(), await startServer()];
  const plain = await toolgate(["tools", "--server", url.replace("https:", "http:")], environment);
  expect(plain).toMatchObject({ code: 6, stdout: "" });
  expect(plain.stderr).toContain("next: if it speaks TLS, use https://");
  const secure = await toolgate(["tools", "--server", clear.url.replace("http:", "https:")], environment);
  expect(secure).toMatchObject({ code: 6, stdout: "" });
  expect(secure.stderr).toContain("does not speak TLS");
});

test("a certificate of another name is refused, and the message says which", async () => {
  const { cert, key } = made.client;
  const { url } = await startServer({}, { config: { tls: { cert, key, clientCa: undefined } } });
  const { code, stderr } = await toolgate(["tools", "--server", url, "--ca", made.ca.certFile], environment);
  expect(code).toBe(6);
  expect(stderr).toContain("is for another name");
});
