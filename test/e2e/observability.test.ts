import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { closeSync, constants, openSync, readSync, writeSync } from "node:fs";
import { mkdir, mkdtemp, readFile, rename, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, onTestFinished, test, vi } from "vitest";
import { programEntry } from "../main.ts";
import { mountSmallDisk } from "../tmpfs.ts";
import { connect } from "./clients.ts";
import { type Service, startService } from "./service.ts";

/** A call that leaves a long log line. */
const longCall = { agent: "free", tool: "echo", input: { text: "x".repeat(200) } };

test("a full disk of the log stops no call: lines are dropped, counted, and written again when there is space", async () => {
  const service = await startService();
  const agent = connect(service, "caller");
  const sessionId = await agent.newSession();
  const disk = mountSmallDisk(join(service.data, "log"), 1);
  hangUp(service);
  const call = (callId: string) => agent.tools.callTool({ sessionId, callId, ...longCall });
  await call("before");
  await vi.waitUntil(async () => (await logOf(service)).includes('"before"'), { timeout: 30_000 });
  // Control: nothing is dropped while there is space.
  expect(await droppedOf(service)).toMatchObject({ file: 0 });
  disk.fill(0);
  for (let round = 0; (await droppedOf(service)).file === 0; round++) {
    expect((await call(`during${round}`)).part?.state.case).toBe("completed");
  }
  expect((await fetch(`${service.url}/healthz`)).status).toBe(200);
  disk.empty();
  await call("after");
  await vi.waitUntil(async () => (await logOf(service)).includes("lines before this one were dropped"), {
    timeout: 30_000,
  });
  expect(await service.stop()).toBe(0);
});

test("a reader of stderr that stalls stops no call, and SIGTERM still ends the service", async () => {
  const stalled = await startWithStalledReader();
  const agent = connect(stalled, "caller");
  const sessionId = await agent.newSession();
  let calls = 0;
  // The name of an unknown tool, with its input, makes the longest lines.
  const input = Object.fromEntries(Array.from({ length: 20 }, (_, index) => [`key${index}`, "x".repeat(199)]));
  while ((await droppedOf(stalled)).stderr === 0) {
    const batch = Array.from({ length: 50 }, () => ({
      sessionId,
      callId: `c${calls++}`,
      agent: "free",
      tool: "none",
      input,
    }));
    await Promise.all(batch.map((call) => agent.tools.callTool(call)));
  }
  // Control: the pipe is full, so a write that may block would.
  expect(() => writeSync(stalled.pipe, Buffer.alloc(65_536))).toThrow("EAGAIN");
  expect((await agent.tools.callTool({ sessionId, callId: "last", ...longCall })).part?.state.case).toBe("completed");
  expect((await droppedOf(stalled)).file).toBe(0);
  stalled.child.kill("SIGTERM");
  const [code] = await once(stalled.child, "exit");
  expect(code).toBe(0);
  const log = await readFile(join(stalled.data, "log", "toolgate.log"), "utf8");
  expect(log).toContain('"reason":"SIGTERM"');
});

test("SIGHUP ends nothing: the log goes on in a new file", async () => {
  const service = await startService();
  const agent = connect(service, "caller");
  const sessionId = await agent.newSession();
  const file = join(service.data, "log", "toolgate.log");
  const call = (callId: string) => agent.tools.callTool({ sessionId, callId, ...longCall });
  await call("c1");
  await vi.waitUntil(async () => (await logOf(service)).includes('"c1"'), { timeout: 30_000 });
  await rename(file, `${file}.1`);
  hangUp(service);
  // The signal is handled before a call that is made after the new file appeared.
  for (let round = 0; !(await logOf(service)).includes("turn"); round++) await call(`turn${round}`);
  expect(await readFile(`${file}.1`, "utf8")).toContain('"c1"');
  expect(await service.stop()).toBe(0);
});

function hangUp({ pid }: Service): void {
  if (pid === undefined) throw new Error("the service does not run");
  process.kill(pid, "SIGHUP");
}

const logOf = ({ data }: Pick<Service, "data">) => readFile(join(data, "log", "toolgate.log"), "utf8").catch(() => "");

/** Reads the counters of dropped lines from the metrics. */
async function droppedOf({ url }: { url: string }): Promise<Record<string, number>> {
  const response = await fetch(`${url}/metrics`, { headers: { authorization: "Bearer watcher-token-for-tests" } });
  const found = (await response.text()).matchAll(/^toolgate_log_dropped_total\{target="(\w+)"\} (\d+)$/gm);
  return Object.fromEntries([...found].map(([, target, count]) => [target, Number(count)]));
}

/** Starts a service whose stderr is a pipe that nobody reads once the address is known. */
async function startWithStalledReader() {
  const directory = await mkdtemp(join(tmpdir(), "toolgate-stalled-"));
  const [fifo, workspace, data] = ["stderr", "workspace", "data"].map((name) => join(directory, name)) as [
    string,
    string,
    string,
  ];
  await mkdir(workspace);
  const tokens = ["caller", "watcher"].map(
    (role) => `[[token]]\nid = "${role}"\nroles = ["${role}"]\nvalue = "${role}-token-for-tests"\n`,
  );
  const config = join(directory, "toolgate.toml");
  await writeFile(config, [`[agent.free.permission]\n"*" = "allow"\n`, ...tokens].join("\n"));
  execFileSync("mkfifo", [fifo]);
  const pipe = openSync(fifo, constants.O_RDWR | constants.O_NONBLOCK);
  const stderr = openSync(fifo, constants.O_WRONLY);
  const paths = ["--workspace", workspace, "--data", data, "--config", config];
  const child = spawn(process.execPath, [programEntry(), "serve", "--listen", "127.0.0.1:0", ...paths], {
    cwd: join(import.meta.dirname, "../.."),
    env: { PATH: process.env.PATH, HOME: directory },
    stdio: ["ignore", "ignore", stderr],
  });
  closeSync(stderr);
  onTestFinished(async () => {
    child.kill("SIGKILL");
    closeSync(pipe);
    await rm(directory, { recursive: true, force: true, maxRetries: 10, retryDelay: 50 });
  });
  let heard = "";
  const url = await vi.waitUntil(
    () => {
      heard += readNow(pipe);
      return / is at .*?(https?:\/\/[0-9.:]+)/.exec(heard)?.[1];
    },
    { timeout: 60_000 },
  );
  return { url, data, workspace, pipe, child };
}

function readNow(fd: number): string {
  const bytes = Buffer.alloc(65_536);
  try {
    return bytes.toString("utf8", 0, readSync(fd, bytes));
  } catch (error) {
    if (error instanceof Error && "code" in error && error.code === "EAGAIN") return "";
    throw error;
  }
}

test("a Redis that does not run is one line, before the start is refused", async () => {
  const store = "redis://127.0.0.1:1";
  const refused = await startService({ env: { TOOLGATE_STORE: store } }).catch((error: Error) => error.message);
  const lines = String(refused).split("\n");
  expect(lines.filter((line) => line.includes("Redis cannot be reached"))).toHaveLength(1);
  expect(lines.filter((line) => line.includes("ECONNREFUSED"))).toHaveLength(2);
  expect(refused).toContain("Redis did not answer in 10 s");
  expect(refused).not.toContain("    at ");
});
