import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { chmod, mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { promisify } from "node:util";
import { beforeAll, expect, onTestFinished, test } from "vitest";
import { findAddresses } from "../../src/cli/commands/setup.ts";
import { answer, untilLive, useBrowsers } from "../console/browser.ts";
import { connect } from "../e2e/clients.ts";
import { startService, unconfined } from "../e2e/service.ts";
import { makeCertificates } from "../edge/certificates.ts";
import { invite } from "../reach/push-service.ts";
import { freePorts } from "../store/redis-server.ts";

const browsers = useBrowsers();
const programs = join(import.meta.dirname, "../../.cache/tailscale");
const run = promisify(execFile);

// Without a cache of Go it takes many minutes, and other agents run beside it.
beforeAll(async () => {
  await mkdir(programs, { recursive: true });
  const built = [".", "tailscale.com/cmd/tailscale", "tailscale.com/cmd/tailscaled"];
  await run("go", ["build", "-o", `${programs}/`, ...built], { cwd: join(import.meta.dirname, "tailnet") });
}, 3_600_000);

/** Starts a program until the test ends; returns it. */
function start(program: string, args: readonly string[], env: Record<string, string> = {}) {
  const child = spawn(join(programs, program), args, {
    env: { PATH: process.env.PATH, ...env },
    stdio: ["ignore", "pipe", "ignore"],
  });
  onTestFinished(async () => {
    if (child.kill("SIGKILL")) await once(child, "exit");
  });
  return child;
}

/** Starts a tailnet with the machine `gate` and the machine `phone`, whose programs reach it by a proxy. No packet leaves this machine. */
async function startTailnet() {
  const directory = await mkdtemp(join(tmpdir(), "toolgate-tailnet-"));
  const certificates = await makeCertificates();
  onTestFinished(async () => {
    await Promise.all([rm(directory, { recursive: true, force: true }), certificates.remove()]);
  });
  // Tailscale gets the certificate of a name from Let's Encrypt; here it finds one.
  const { cert, key } = await certificates.make("gate", "subjectAltName=DNS:gate.tail.example");
  await mkdir(join(directory, "gate/certs"), { recursive: true });
  await writeFile(join(directory, "gate/certs/gate.tail.example.crt"), cert);
  await writeFile(join(directory, "gate/certs/gate.tail.example.key"), key);
  const env = {
    ...{ HOME: directory, SSL_CERT_FILE: certificates.ca.certFile, TS_NO_LOGS_NO_SUPPORT: "true" },
    ...{ TS_DEBUG_ACME_DIRECTORY_URL: "http://127.0.0.1:1/" },
  };
  const [control = ""] = await once(createInterface({ input: start("control", [], env).stdout }), "line");
  const enter = async (name: string, more: readonly string[] = []) => {
    const state = join(directory, name);
    await mkdir(state, { recursive: true });
    const flags = ["--tun=userspace-networking", `--statedir=${state}`, `--socket=${state}/sock`, "--port=0", ...more];
    start("tailscaled", flags, env).stdout.resume();
    const tailscale = async (...args: string[]) =>
      (await run(join(programs, "tailscale"), [`--socket=${state}/sock`, ...args], { env })).stdout;
    await expect
      .poll(() => tailscale("status").catch((error) => error.stdout), { timeout: 20_000 })
      .toContain("Logged out");
    await tailscale("up", `--login-server=${control}`, `--hostname=${name}`);
    return { tailscale, socket: `${state}/sock` };
  };
  const [port = 0] = await freePorts(1);
  const gate = await enter("gate");
  await enter("phone", [`--socks5-server=127.0.0.1:${port}`]);
  const bin = join(directory, "bin");
  await mkdir(bin);
  await writeFile(join(bin, "tailscale"), `#!/bin/sh\nexec ${programs}/tailscale --socket=${gate.socket} "$@"\n`);
  await chmod(join(bin, "tailscale"), 0o755);
  return { gate, bin, proxy: `socks5://127.0.0.1:${port}` };
}

test("through Tailscale a phone signs in, sees a request live and answers it, and setup knows the name of the machine", async () => {
  const service = await startService({ settings: `hosts = ["gate.tail.example"]\n${unconfined}` });
  const { gate, bin, proxy } = await startTailnet();
  const { port } = new URL(service.url);
  const [found] = await findAddresses({ PATH: `${bin}:${process.env.PATH}` }, port);
  expect(found).toEqual({ url: "https://gate.tail.example", needs: `\`tailscale serve --bg ${port}\`` });
  expect(await gate.tailscale("serve", "--bg", port)).toContain("https://gate.tail.example/");

  const phone = { viewport: { width: 390, height: 844 }, proxy: { server: proxy }, ignoreHTTPSErrors: true };
  const page = await (await browsers.browser(phone)).newPage();
  await page.goto(`https://gate.tail.example/#code=${await invite(service, "Ann")}`);
  await untilLive(page);
  const agent = connect(service, "caller");
  const call = { sessionId: await agent.newSession(), callId: "c1", tool: "bash", input: { command: "echo tailed" } };
  const done = agent.tools.callTool(call);
  done.catch(() => undefined);
  await page.locator(".ask-row").filter({ hasText: "echo tailed" }).first().click();
  await answer(page, /Approve once/);
  expect((await done).part?.state).toMatchObject({ case: "completed" });
});
