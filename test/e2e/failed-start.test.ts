import { once } from "node:events";
import { chmod, cp, mkdtemp, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { ToolEffects, ToolErrorReason } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { programEntry } from "../main.ts";
import { connect } from "./clients.ts";
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
    await expectFree(service);
  },
);

/** Expects that another service can use the data directory. */
async function expectFree({ data }: Service, options: ServiceOptions = {}): Promise<void> {
  const next = await newService({ ...options, flags: ["--data", data] });
  await next.start();
  expect(await next.stop()).toBe(0);
}

/** Makes a copy of the package and breaks it; returns its entry point. */
async function brokenPackage(breakFile: (dist: string) => Promise<void>): Promise<string> {
  const copy = await mkdtemp(join(tmpdir(), "toolgate-package-"));
  onTestFinished(() => rm(copy, { recursive: true }));
  await cp(dirname(dirname(programEntry())), copy, { recursive: true, dereference: true });
  await chmod(copy, 0o755);
  await breakFile(join(copy, "dist"));
  return join(copy, "bin/toolgate.js");
}

test("a service that may not read its console ends, and its MCP server and lock with it", async () => {
  const uid = 23_456;
  const entry = await brokenPackage((dist) => chmod(join(dist, "console/index.html"), 0));
  const service = await newService({ entry, uid, settings: mcp });
  expect(await failingStart(service)).toMatch(/EACCES.*console/);
  await expect.poll(() => processesWith(child)).toEqual([]);
  await expectFree(service, { uid });
});

test("a service with a broken table of credentials ends, and starts again without it", async () => {
  const service = await startService({ settings: mcp });
  await service.stop();
  const file = join(service.data, "credentials.json");
  await writeFile(file, "{broken");
  expect(await failingStart(service)).toContain(`${file} is not a table of credentials`);
  await expect.poll(() => processesWith(child)).toEqual([]);
  await rm(file);
  await expectFree(service);
});

// Threads start with the first command, so that a broken one ends no service.
test.each(["supervisor", "plan"])(
  "without its %s thread no command runs, and the service ends as it should",
  async (name) => {
    const entry = await brokenPackage((dist) => rm(join(dist, `${name}-thread.js`)));
    const service = await newService({ entry, settings: mcp });
    await service.start();
    const { tools, newSession } = connect(service, "caller");
    const call = { sessionId: await newSession(), tool: "bash", input: { command: "echo ran" }, agent: "free" };
    expect((await tools.callTool(call)).part?.state.value).toMatchObject({
      reason: ToolErrorReason.FAILED,
      effects: ToolEffects.NONE,
      error: expect.stringContaining("was not run"),
    });
    expect(await service.stop()).toBe(0);
    await expect.poll(() => processesWith(child)).toEqual([]);
    await expectFree(service);
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
