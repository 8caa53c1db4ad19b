import { spawn } from "node:child_process";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { request } from "node:https";
import type { LookupFunction } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createClient } from "@connectrpc/connect";
import { createConnectTransport } from "@connectrpc/connect-node";
import { expect, onTestFinished, test } from "vitest";
import { ChannelService } from "../../gen/opencode/tool/v1/channel_service_pb.ts";
import { CredentialService } from "../../gen/opencode/tool/v1/credential_service_pb.ts";
import { answer, untilLive, useBrowsers } from "../console/browser.ts";
import { bearer, connect } from "../e2e/clients.ts";
import { startService, unconfined } from "../e2e/service.ts";
import { makeCertificates } from "../edge/certificates.ts";
import { invite, newBrowser, startPushService } from "../reach/push-service.ts";
import { freePorts } from "../store/redis-server.ts";

const browsers = useBrowsers();

/** Starts Caddy with the file of docs/phone.md, for these names, on a port of this machine with a certificate of it. */
async function startCaddy({ url }: { url: string }, names: readonly string[]) {
  const certificates = await makeCertificates();
  const directory = await mkdtemp(join(tmpdir(), "toolgate-caddy-"));
  onTestFinished(async () => {
    await Promise.all([certificates.remove(), rm(directory, { recursive: true, force: true })]);
  });
  const { certFile, keyFile } = await certificates.make(
    "proxy",
    `subjectAltName=${names.map((name) => `DNS:${name}`)}`,
  );
  const page = await readFile(join(import.meta.dirname, "../../docs/phone.md"), "utf8");
  const [, site = ""] = /^```caddyfile\n([\s\S]*?)^```$/m.exec(page) ?? [];
  const [port = 0] = await freePorts(1);
  const file = site
    .replace(
      "tools.example {",
      `${names.map((name) => `https://${name}:${port}`).join(", ")} {\n\tbind 127.0.0.1\n\ttls ${certFile} ${keyFile}`,
    )
    .replace("127.0.0.1:7420", new URL(url).host);
  await writeFile(join(directory, "Caddyfile"), `{\n\tadmin off\n\tauto_https off\n}\n${file}`);
  const child = spawn("caddy", ["run", "--config", "Caddyfile", "--adapter", "caddyfile"], {
    ...{ cwd: directory, env: { PATH: process.env.PATH, HOME: directory }, stdio: "ignore" },
  });
  onTestFinished(() => void child.kill("SIGKILL"));
  const lookup: LookupFunction = (_, { all }, found) =>
    all ? found(null, [{ address: "127.0.0.1", family: 4 }]) : found(null, "127.0.0.1", 4);
  const options = { ca: certificates.ca.cert, lookup };
  const statusOf = (name: string) =>
    new Promise<number>((resolve) => {
      request(`https://${name}:${port}/`, { ...options, agent: false }, (response) => {
        response.resume();
        resolve(response.statusCode ?? 0);
      })
        .on("error", () => resolve(0))
        .end();
    });
  await expect.poll(() => statusOf("localhost"), { timeout: 20_000 }).toBe(200);
  return { port, statusOf, options };
}

test("behind Caddy a person signs in, sees a request live and answers it, a browser subscribes, and an unknown host is refused", async () => {
  const provider = await startPushService();
  const service = await startService({ settings: `${provider.settings}${unconfined}` });
  const { port, statusOf, options } = await startCaddy(service, ["localhost", "gate.example", "other.example"]);
  // The name of `public_url`, and one that the service does not know.
  expect([await statusOf("gate.example"), await statusOf("other.example")]).toEqual([200, 403]);

  const page = await (await browsers.browser({ ignoreHTTPSErrors: true })).newPage();
  await page.goto(`https://localhost:${port}/#code=${await invite(service, "Ann")}`);
  await untilLive(page);
  const agent = connect(service, "caller");
  const call = { sessionId: await agent.newSession(), callId: "c1", tool: "bash", input: { command: "echo proxied" } };
  const done = agent.tools.callTool(call);
  done.catch(() => undefined);
  await page.locator(".ask-row").filter({ hasText: "echo proxied" }).first().click();
  await answer(page, /Approve once/);
  expect((await done).part?.state).toMatchObject({ case: "completed" });

  const transportOf = (token?: string) =>
    createConnectTransport({
      ...{ baseUrl: `https://gate.example:${port}`, httpVersion: "1.1", nodeOptions: options },
      interceptors: token === undefined ? [] : [bearer(token)],
    });
  const { token } = await createClient(CredentialService, transportOf()).signIn({ code: await invite(service, "Bob") });
  const channels = createClient(ChannelService, transportOf(token));
  const { pushKey } = await channels.listChannels({});
  const { p256dh, auth, decrypt } = newBrowser();
  await channels.subscribe({ endpoint: `${provider.url}/bob`, p256dh, auth, pushKey });
  expect(JSON.parse(decrypt(provider.pushes.at(-1)?.body ?? Buffer.alloc(0)).toString())).toMatchObject({ id: "test" });
});
