import { once } from "node:events";
import { readdir, readFile, rm, writeFile } from "node:fs/promises";
import { createServer } from "node:net";
import { dirname, join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { createService, type Service, type ServiceOptions, startService } from "./service.ts";

/** Starts a service that has to fail: resolves with what it printed once it has ended by itself, with exit code 1. */
async function failingStart(service: Service): Promise<string> {
  const error: unknown = await service.start().then(
    () => new Error("it started"),
    (cause: unknown) => cause,
  );
  // A start that does not end fails the test by its time limit.
  await expect.poll(() => service.pid, { timeout: 120_000 }).toBeUndefined();
  expect(await service.stop()).toBe(1);
  return String(error);
}

async function newService(options: ServiceOptions): Promise<Service> {
  const service = createService(options);
  onTestFinished(service.close);
  return service;
}

/** Takes a port of this machine until the test ends. */
async function takenPort(): Promise<number> {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  onTestFinished(() => void server.close());
  const address = server.address();
  return typeof address === "object" && address !== null ? address.port : 0;
}

async function processesWith(word: string): Promise<string[]> {
  const pids = (await readdir("/proc")).filter((name) => /^\d+$/.test(name));
  const lines = await Promise.all(pids.map((pid) => readFile(`/proc/${pid}/cmdline`, "utf8").catch(() => "")));
  return lines.filter((line) => line.includes(word));
}

// Its number names it among the processes of the machine.
const child = `86400.${process.pid}`;
const mcp = `[mcp.slow]\ncommand = "/bin/sleep"\nargs = ["${child}"]\n`;

test.each(["listen", "health_listen"])(
  "a service whose %s is taken ends, and its MCP server and lock with it",
  async (key) => {
    const setting = `127.0.0.1:${await takenPort()}`;
    const isListen = key === "listen";
    const flags = isListen ? ["--listen", setting] : [];
    const service = await newService({ settings: `${isListen ? "" : `health_listen = "${setting}"\n`}${mcp}`, flags });
    expect(await failingStart(service)).toContain("EADDRINUSE");
    await expect.poll(() => processesWith(child)).toEqual([]);
    const next = createService({ flags: ["--data", service.data] });
    onTestFinished(next.close);
    await next.start();
    expect(await next.stop()).toBe(0);
  },
);

test("a service whose data directory another one holds ends, and the other one stays", async () => {
  const first = await startService();
  const second = await newService({ flags: ["--data", first.data] });
  expect(await failingStart(second)).toContain("is in use by process");
  expect((await fetch(`${first.url}/readyz`)).status).toBe(200);
});

test("a service with a damaged store ends", async () => {
  const service = await startService();
  await service.stop();
  const [name = ""] = (await readdir(service.data)).filter((file) => /\.(db|sqlite)$/.test(file));
  await writeFile(join(service.data, name), "no database".repeat(1_000));
  expect(await failingStart(service)).toContain(name);
});

test("a service with a broken plugin, a missing certificate or no Redis ends", async () => {
  const [file, noFile] = ["broken.ts", "/no/such.pem"];
  const plugin = await newService({ settings: `plugin = ["./broken.ts"]\n${mcp}` });
  expect(await failingStart(plugin)).toContain(file);
  await writeFile(join(dirname(plugin.config), file), "throw new Error('broken by the test');\n");
  expect(await failingStart(plugin)).toContain("broken by the test");
  const tls = await newService({ flags: ["--tls-cert", noFile, "--tls-key", noFile] });
  expect(await failingStart(tls)).toContain(noFile);
  const redis = await newService({ env: { TOOLGATE_STORE: `redis://127.0.0.1:${await takenPort()}` } });
  expect(await failingStart(redis)).toContain("redis");
});

test("a service whose directory for marks cannot be made ends", async () => {
  const service = await startService();
  await service.stop();
  await rm(join(service.data, "entered"), { recursive: true, force: true });
  await writeFile(join(service.data, "entered"), "");
  expect(await failingStart(service)).toMatch(/entered/);
});
