import { once } from "node:events";
import { existsSync } from "node:fs";
import { mkdir, readdir, readFile, readlink, rm, symlink, writeFile } from "node:fs/promises";
import { createServer } from "node:http";
import { dirname, join } from "node:path";
import { afterAll, beforeAll, beforeEach, describe, expect, onTestFinished, test, vi } from "vitest";
import { type Source, SourceKind, SourceService, SourceState } from "../../gen/opencode/tool/v1/source_service_pb.ts";
import { ToolEffects, ToolErrorReason, ToolExecutor } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { toolgate } from "../cli/toolgate.ts";
import { killIfAlive } from "../tools/processes.ts";
import { clientOf, connect } from "./clients.ts";
import { createService, type Service, startService, unconfined } from "./service.ts";

/** Does what its input says. */
const probe = `import { spawn } from "node:child_process";
import { chmodSync, existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync, writeSync } from "node:fs";
import { setTimeout as delay } from "node:timers/promises";
const seen = (read) => { try { return String(read()); } catch (error) { return "error: " + error.code; } };
export default { description: "Probes.", args: { does: { type: "string" }, arg: { type: "string", default: "" } },
  async execute({ does, arg }, ctx) {
    if (does === "hang") for (;;);
    if (does === "crash") process.exit(7);
    if (does === "throw") { setTimeout(() => { throw new Error("later"); }); await new Promise(() => {}); }
    if (does === "print") for (let i = 0; i < 10_000; i += 1) { console.log("{ \\u001b[2J } " + "o".repeat(300)); console.error("e" + i); }
    if (does === "garbage") { writeSync(4, Buffer.alloc(300, 255)); await new Promise(() => {}); }
    if (does === "fork") spawn("sleep", [arg], { detached: true, stdio: "ignore" }).unref();
    if (does === "environ") return seen(() => readFileSync("/proc/self/environ")) + seen(() => readFileSync("/proc/" + process.ppid + "/environ"));
    if (does === "list") return seen(() => readdirSync(arg));
    if (does === "read") return seen(() => readFileSync(arg));
    if (does === "fetch") return await fetch(arg).then((response) => "status " + response.status, (error) => "error: " + (error.cause?.code ?? error.message));
    if (does === "write") writeFileSync(arg, "x");
    if (does === "get") return await fetch(arg).then(() => "got it", (error) => "error: " + error.message);
    if (does === "set-id") {
      const directory = mkdtempSync("/tmp/set-id-");
      writeFileSync(directory + "/program", "");
      const tried = seen(() => chmodSync(directory + "/program", 0o4755));
      rmSync(directory, { recursive: true });
      return tried;
    }
    if (does === "say") return arg;
    if (does === "cwd") return process.cwd();
    if (does === "wait") { writeFileSync(ctx.directory + "/entered", ""); while (!existsSync(ctx.directory + "/go")) await delay(5); }
    return "done";
  } };
`;
const guard = `export default { name: "guard", "tool.execute.before": async (call, output) => {
  const { text } = output.args;
  if (text === "silent") await new Promise(() => {});
  if (text === "block") for (;;);
  if (text === "crash") process.exit(5);
  if (text === "deny") throw new Error("it is guarded");
} };
`;

const service = createService({
  settings: '[tools]\nenv = ["TOOL_KEY"]\n[permission.read]\n"*" = "allow"\n"hidden.txt" = "deny"\n',
  env: { TOOL_KEY: "the-key", OTHER_SECRET: "hidden-value" },
});

async function writeFiles(folder: string, files: Record<string, string>): Promise<void> {
  for (const [path, text] of Object.entries(files)) {
    await mkdir(dirname(join(folder, path)), { recursive: true });
    await writeFile(join(folder, path), text);
  }
}

/** Makes a Bun that agents can replace, and links to it from the configuration. */
async function bunInWorkspace(): Promise<void> {
  const path = join(service.workspace, "bun");
  await writeFile(path, "#!/bin/sh\nexit 9\n", { mode: 0o755 });
  const programs = join(dirname(service.config), "node_modules/.bin");
  await mkdir(programs, { recursive: true });
  await symlink(path, join(programs, "bun"));
}

beforeAll(async () => {
  await service.start();
  await service.stop();
  await writeFiles(dirname(service.config), { "tool/probe.ts": probe, "plugins/guard.ts": guard });
  await writeFile(join(service.workspace, "hidden.txt"), "hidden");
  await bunInWorkspace();
  await writeFile(service.config, `plugin = ["plugins/guard.ts"]\n${await readFile(service.config, "utf8")}`);
  await service.start();
});
afterAll(service.close);

/** Starts a server that answers, until the test ends. */
async function answering(text: string): Promise<{ url: string; port: number }> {
  const server = createServer((_, response) => response.end(text)).listen(0, "127.0.0.1");
  onTestFinished(() => void server.close());
  await once(server, "listening");
  const address = server.address();
  const port = typeof address === "object" && address !== null ? address.port : 0;
  return { url: `http://127.0.0.1:${port}/`, port };
}

async function call(tool: string, input = {}, fields = {}, at: Service = service) {
  const { part } = await connect(at, "caller").tools.callTool({ tool, input, agent: "free", ...fields });
  return part?.state.value;
}

const run = (does: string, arg = "", at: Service = service) => call("probe", { does, arg }, {}, at);
const echo = (text: string) => call("echo", { text });
const lost = (why: string | RegExp) => ({
  reason: ToolErrorReason.EXECUTOR_LOST,
  error: expect.stringMatching(why),
  effects: ToolEffects.UNKNOWN,
});

async function sources(): Promise<Source[]> {
  return (await clientOf(SourceService, service.url, "approver-token-for-tests").listSources({})).sources;
}

/** Returns the processes whose command line holds a text. */
async function processesWith(text: string): Promise<number[]> {
  const pids = (await readdir("/proc")).filter((name) => /^\d+$/.test(name)).map(Number);
  const lines = pids.map(async (pid) => [pid, await readFile(`/proc/${pid}/cmdline`, "utf8").catch(() => "")] as const);
  return (await Promise.all(lines)).filter(([, line]) => line.includes(text)).map(([pid]) => pid);
}

/** Returns the processes that run tools in the workspace. */
async function toolProcesses(): Promise<number[]> {
  const places = (await processesWith("tool-process")).map(
    async (pid) => [pid, await readlink(`/proc/${pid}/cwd`).catch(() => "")] as const,
  );
  return (await Promise.all(places)).filter(([, cwd]) => cwd === service.workspace).map(([pid]) => pid);
}

test("a call names what runs its body", async () => {
  const executorOf = async (tool: string, input: Record<string, string>) =>
    (await connect(service, "caller").tools.callTool({ tool, input, agent: "free" })).part?.executor;
  expect(await executorOf("probe", { does: "none", arg: "" })).toBe(ToolExecutor.TOOL_PROCESS);
  expect(await executorOf("echo", { text: "hello" })).toBe(ToolExecutor.UNSPECIFIED);
});

const entered = () => vi.waitUntil(() => existsSync(join(service.workspace, "entered")), { timeout: 60_000 });
const forget = async () => {
  for (const name of ["entered", "go"]) await rm(join(service.workspace, name), { force: true });
};

const runsAgain = () =>
  vi.waitFor(async () => expect(await run("cwd")).toMatchObject({ output: service.workspace }), 60_000);

describe("a tool in its process", () => {
  beforeEach(runsAgain);

  test("works in the workspace, and sees no secret, no data and no port of the service, and leaves no set-ID file", async () => {
    expect(await run("set-id")).toMatchObject({ output: "error: EPERM" });
    expect(await run("cwd")).toMatchObject({ output: service.workspace });
    const environ = await run("environ");
    expect(environ).toMatchObject({ output: expect.stringContaining("TOOL_KEY=the-key") });
    expect(environ).not.toMatchObject({ output: expect.stringContaining("hidden-value") });
    expect(await run("list", service.data)).toMatchObject({ output: "" });
    expect(await run("read", service.config)).toMatchObject({ output: "error: EACCES" });
    expect(await run("read", join(service.workspace, "hidden.txt"))).toMatchObject({ output: "error: EACCES" });
    expect(await run("fetch", `${service.url}/healthz`)).toMatchObject({ output: expect.stringContaining("error: ") });
  });

  test("learns which setting a host, a port of this machine, or a directory of tools needs", async () => {
    const network =
      /error: .+\n\nNote: tool files run in the sandbox, with no network\..* local_ports, under \[tools\]/;
    expect(await run("fetch", "http://127.0.0.1:9/")).toMatchObject({ output: expect.stringMatching(network) });
    expect(await run("get", "https://example.com/")).toMatchObject({ output: expect.stringMatching(network) });
    const written = await run("write", join(dirname(service.config), "tool/data.json"));
    expect(written).toMatchObject({
      error: expect.stringMatching(
        /EROFS[\s\S]*Note: tool files run in the sandbox, which cannot change the directories of tools/,
      ),
    });
    expect(await run("read", "none.txt")).toMatchObject({ output: "error: ENOENT" });
    for (const text of ["Set GEMINI_API_KEY in your environment", "Error: GITHUB_TOKEN is not set"])
      expect(await run("say", text)).toMatchObject({
        output: expect.stringMatching(/\n\nNote: .* env under \[tools\]/),
      });
  });

  test("reaches the ports of this machine that the configuration names, and no other", async () => {
    const [named, other] = [await answering("named"), await answering("other")];
    const open = await startService({ settings: `[tools]\nlocal_ports = [${named.port}]\n` });
    await writeFiles(dirname(open.config), { "tool/probe.ts": probe });
    expect(await run("fetch", named.url, open)).toMatchObject({ output: "status 200" });
    expect(await run("fetch", other.url, open)).toMatchObject({
      output: expect.stringContaining(`with the network for 127.0.0.1:${named.port}`),
    });
  });

  test.each(["ask", "deny"])("runs where rules %s for every path, and sees its own code alone", async (action) => {
    const rules = `[permission]\n"*" = "${action}"\n[permission.read]\n"*" = "${action}"\n"*/unseen.*" = "deny"\n`;
    const strict = createService({ settings: rules });
    onTestFinished(strict.close);
    await strict.start();
    await strict.stop();
    const folder = join(dirname(strict.config), "tool");
    await writeFiles(folder, { "probe.ts": probe, "unseen.txt": "s", "beside.txt": "seen" });
    await writeFile(join(folder, "../other.txt"), "s");
    await writeFiles(strict.workspace, { "source.txt": "s", ".opencode/tool/own.ts": probe });
    await toolgate(["trust", strict.workspace, "--data", strict.data, "--config", strict.config]);
    await strict.start();
    expect(await call("own", { does: "say", arg: "hello" }, {}, strict)).toMatchObject({ output: "hello" });
    expect(await run("read", join(folder, "beside.txt"), strict)).toMatchObject({ output: "seen" });
    expect(await run("read", join(folder, "unseen.txt"), strict)).toMatchObject({ output: "error: EACCES" });
    expect(await run("read", strict.config, strict)).toMatchObject({ output: expect.stringContaining("error: E") });
    expect(await run("read", join(folder, "../other.txt"), strict)).toMatchObject({ output: "error: ENOENT" });
    expect(await run("list", strict.data, strict)).toMatchObject({ output: "" });
    expect(await run("list", strict.workspace, strict)).toMatchObject({ output: "" });
    expect(await run("write", join(strict.workspace, "new.txt"), strict)).toMatchObject({
      error: expect.stringContaining("EROFS"),
    });
  });

  test("without the sandbox would see them: the same reads find data and port, and the file has its mode", async () => {
    const open = await startService({ settings: unconfined });
    await writeFiles(dirname(open.config), { "tool/probe.ts": probe });
    expect(await run("list", open.data, open)).toMatchObject({ output: expect.stringContaining("toolgate.sqlite") });
    expect(await run("fetch", `${open.url}/healthz`, open)).toMatchObject({ output: "status 200" });
    expect(await run("set-id", "", open)).toMatchObject({ output: "undefined" });
  });

  test("that crashes, throws later or writes garbage to its connection loses its call, and the next call runs", async () => {
    const path = join(dirname(service.config));
    expect(await run("crash")).toMatchObject(lost(RegExp(`tool process of ${path}.* ended .*exit code 7`)));
    expect(await run("cwd")).toMatchObject({ output: service.workspace });
    expect(await run("throw")).toMatchObject(lost("exit code 1"));
    await runsAgain();
    expect(await run("garbage")).toMatchObject(lost("no valid message"));
    expect((await sources()).find(({ name }) => name === path)).toMatchObject({
      state: SourceState.WAITING,
      problem: expect.stringContaining("no valid message"),
    });
    await runsAgain();
  });

  test("that hangs ends at the call's deadline, and the next call runs in another process", async () => {
    expect(await call("probe", { does: "hang" }, { timeoutMs: 300 })).toMatchObject({
      reason: ToolErrorReason.TIMEOUT,
    });
    await runsAgain();
  });

  test("that floods stdout and stderr disturbs nothing: the log takes few lines of it, escaped", async () => {
    expect(await run("print")).toMatchObject({ output: "done" });
    const printed = async () =>
      (await readFile(join(service.data, "log/toolgate.log"), "utf8"))
        .split("\n")
        .filter((line) => line.includes("a tool process printed"));
    await vi.waitUntil(async () => (await printed()).length >= 100, { timeout: 60_000 });
    expect((await printed()).length).toBeLessThan(250);
    expect((await printed()).join()).toContain("\\\\u{1b}[2J");
  });

  test("whose process ends leaves no process behind", async () => {
    const seconds = `${100_000 + process.pid}`;
    expect(await run("fork", seconds)).toMatchObject({ output: "done" });
    expect(await processesWith(`sleep\0${seconds}`)).not.toEqual([]);
    await run("crash");
    await vi.waitFor(async () => expect(await processesWith(`sleep\0${seconds}`)).toEqual([]), 60_000);
  });

  test("killed while its body runs, or with its service, ends its call EXECUTOR_LOST", async () => {
    const running = run("wait");
    await entered();
    for (const pid of await toolProcesses()) killIfAlive(pid);
    expect(await running).toMatchObject(lost("ended while the call ran"));
    await forget();
    const { newSession } = connect(service, "caller");
    const sessionId = await newSession();
    void call("probe", { does: "wait" }, { sessionId, callId: "c1" }).catch(() => undefined);
    await entered();
    await service.kill();
    await vi.waitFor(async () => expect(await toolProcesses()).toEqual([]), 60_000);
    await service.start();
    const end = async () =>
      (await connect(service, "caller").tools.getToolPart({ sessionId, callId: "c1" })).part?.state.value;
    await vi.waitFor(async () => expect(await end()).toMatchObject({ reason: ToolErrorReason.EXECUTOR_LOST }), 60_000);
    await forget();
  });
});

test("a Bun in a workspace is not run, also behind a link", async () => {
  await run("cwd");
  expect((await sources()).map(({ origin }) => origin)).toEqual(Array(2).fill(expect.stringMatching(/^Node\.js 24/)));
});

describe("a guard in its process", () => {
  test("that is silent for 5 s, blocks, crashes or throws stops the call, and guards the next one", async () => {
    expect(await echo("x")).toMatchObject({ output: "x" });
    const stopped = (why: string) => ({
      error: expect.stringMatching(RegExp(`^The hook tool.execute.before of the plugin guard stopped this: .*${why}`)),
    });
    expect(await echo("silent")).toMatchObject(stopped("5 s"));
    expect(await echo("deny")).toMatchObject(stopped("it is guarded"));
    expect(await echo("block")).toMatchObject(stopped("5 s"));
    await vi.waitFor(async () => expect(await echo("x")).toMatchObject({ output: "x" }), 60_000);
    expect(await echo("crash")).toMatchObject(stopped("exit code 5"));
    await vi.waitFor(async () => expect(await echo("deny")).toMatchObject(stopped("it is guarded")), 60_000);
  });

  test("that crashes again and again denies each call until it runs", async () => {
    // The pause before the next start grows with each crash, until a call comes within it.
    const denied = { reason: ToolErrorReason.GUARD_NOT_LOADED, error: expect.stringContaining("exit code 5") };
    await vi.waitFor(async () => expect(await echo("crash")).toMatchObject(denied));
    await vi.waitFor(async () => expect(await echo("x")).toMatchObject({ output: "x" }), 60_000);
  });
});

test("toolgate sources and the metrics show each process", async () => {
  await run("cwd");
  const shown = await sources();
  const path = dirname(service.config);
  expect(shown).toMatchObject([
    { name: path, kind: SourceKind.TOOL_PROCESS, workspace: "default", state: SourceState.READY, problem: "" },
    { name: join(path, "plugins/guard.ts"), workspace: "default", state: SourceState.READY, tools: [] },
  ]);
  const [directory] = shown;
  expect(directory).toMatchObject({ files: [join(path, "tool/probe.ts")], tools: [{ name: "probe" }] });
  expect(directory?.confinement).toBe("in the sandbox, with no network");
  expect(directory?.memoryBytes).toBeGreaterThan(10_000_000n);
  const { stdout } = await toolgate(["sources"], {
    TOOLGATE_URL: service.url,
    TOOLGATE_TOKEN: "approver-token-for-tests",
  });
  expect(stdout).toContain("tool/probe.ts");
  const metrics = await (
    await fetch(`${service.url}/metrics`, { headers: { authorization: "Bearer admin-token-for-tests" } })
  ).text();
  expect(metrics).toContain(`toolgate_source_ready{source="${path}",workspace="default"} 1`);
});
