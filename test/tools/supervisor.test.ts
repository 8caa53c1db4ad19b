import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { readdirSync, readlinkSync } from "node:fs";
import { readdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { afterEach, expect, test } from "vitest";
import { createSupervisor, readProcesses } from "../../src/tools/process/supervisor.ts";
import { isAlive, untilDead } from "./processes.ts";

const started: ChildProcess[] = [];
afterEach(() => {
  for (const child of started.splice(0)) child.kill("SIGKILL");
});

let services = 0;
const newReplica = () => {
  services += 1;
  return `supervisor-test-${process.pid}-${services}`;
};

/** Starts a separate service with two commands. */
async function startService() {
  const replica = newReplica();
  const service = spawn(process.execPath, [join(import.meta.dirname, "supervised-service.ts"), replica], {
    stdio: ["ignore", "pipe", "inherit"],
  });
  started.push(service);
  const [line] = await once(service.stdout, "data");
  return { service, commands: String(line).trim().split(" ").map(Number), watcher: await watcherOf(replica) };
}

/** The supervisor's process: the only one that has the mark among its arguments. */
async function watcherOf(replica: string): Promise<number> {
  for (const pid of (await readdir("/proc")).filter((name) => /^\d+$/.test(name))) {
    const words = await readFile(`/proc/${pid}/cmdline`, "utf8").catch(() => "");
    if (words.split("\0").includes(`TOOLGATE_REPLICA=${replica}`)) return Number(pid);
  }
  throw new Error(`no supervisor of ${replica}`);
}

test("when the service is killed its commands are killed, even one in a separate session, and the supervisor ends", async () => {
  const { service, commands, watcher } = await startService();
  expect(commands).toHaveLength(2);
  for (const pid of commands) expect(await isAlive(pid)).toBe(true);
  service.kill("SIGKILL");
  for (const pid of [...commands, watcher]) await untilDead(pid);
});

test("when the service is frozen its commands are killed, and the supervisor stays", async () => {
  const { service, commands, watcher } = await startService();
  service.kill("SIGSTOP");
  for (const pid of commands) await untilDead(pid);
  expect(await isAlive(watcher)).toBe(true);
  service.kill("SIGKILL");
  await untilDead(watcher);
});

test("Ctrl-C and a signal to the whole group do not end it before the service", async () => {
  const { service, commands, watcher } = await startService();
  for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"] as const) process.kill(watcher, signal);
  service.kill("SIGKILL");
  for (const pid of [...commands, watcher]) await untilDead(pid);
});

test("a killed supervisor is replaced, so that running commands stay watched", async () => {
  const { service, commands, watcher } = await startService();
  process.kill(watcher, "SIGKILL");
  await untilDead(watcher);
  const next = await new Promise<number>((resolve) => {
    const look = () => void watcherOf(replicaOf(service)).then(resolve, () => setTimeout(look, 20));
    look();
  });
  service.kill("SIGKILL");
  for (const pid of [...commands, next]) await untilDead(pid);
});

test("a supervisor whose service is gone before it is ready still kills the commands", async () => {
  const replica = newReplica();
  const command = await startCommand({ TOOLGATE_REPLICA: replica });
  const script = join(import.meta.dirname, "../../src/tools/process/supervisor.sh");
  // It starts after its reader is gone.
  const begin = 'read -r && exec /bin/bash --noprofile --norc "$@"';
  const watcher = spawn("/bin/bash", ["-c", begin, "bash", script, `TOOLGATE_REPLICA=${replica}`, "9"], {
    stdio: ["pipe", "pipe", "ignore"],
  });
  started.push(watcher);
  const deaf = once(watcher.stdout, "close");
  watcher.stdout.destroy();
  await deaf;
  watcher.stdin.end("\n");
  await untilDead(command);
});

const replicaOf = (service: ChildProcess) => service.spawnargs.at(-1) ?? "";

/** Runs `sleep` with the marks of a call of this process, which is what the supervisor finds it by. */
async function startCommand(env: Record<string, string>): Promise<number> {
  const child = spawn("/bin/sleep", ["1000"], { env, detached: true, stdio: "ignore" });
  started.push(child);
  await once(child, "spawn");
  return child.pid ?? 0;
}

test("closing kills the remaining commands of this replica only", async () => {
  const supervisor = createSupervisor({ replicaId: newReplica(), leaseMs: 15_000 });
  const other = createSupervisor({ replicaId: newReplica(), leaseMs: 15_000 });
  const call = { sessionId: "ses_test", callId: "same" };
  const mine = await startCommand(await supervisor.watch(call));
  const theirs = await startCommand(await other.watch(call));
  await supervisor.close();
  await untilDead(mine);
  expect(await isAlive(theirs)).toBe(true);
  await expect(supervisor.watch(call)).rejects.toThrow("the service is stopping");
  await other.close();
  await untilDead(theirs);
});

test("ending a call does not affect commands of other calls, even with a common prefix of the ID", async () => {
  const supervisor = createSupervisor({ replicaId: newReplica(), leaseMs: 15_000 });
  const one = await startCommand(await supervisor.watch({ sessionId: "ses_test", callId: "1" }));
  const ten = await startCommand(await supervisor.watch({ sessionId: "ses_test", callId: "10" }));
  await supervisor.kill({ sessionId: "ses_test", callId: "1" }, one);
  await untilDead(one);
  expect(await isAlive(ten)).toBe(true);
  await supervisor.close();
  await untilDead(ten);
});

test("a busy main thread delays no heartbeat", async () => {
  const supervisor = createSupervisor({ replicaId: newReplica(), leaseMs: 1_000 });
  const env = { PATH: process.env.PATH, ...(await supervisor.watch({ sessionId: "ses_a", callId: "call" })) };
  const command = spawn("/bin/sleep", ["1000"], { env, stdio: "ignore" });
  started.push(command);
  // Three times the lease, without one turn of the event loop.
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 3_000);
  expect(await isAlive(command.pid ?? 0)).toBe(true);
  expect(supervisor.kills()).toBe(0);
  await supervisor.close();
  await untilDead(command.pid ?? 0);
});

test("of many processes a few are read at a time, so that descriptors are left to the service", async () => {
  for (let n = 0; n < 40; n += 1) started.push(spawn("sleep", ["60"], { stdio: "ignore" }));
  let [most, isReading] = [0, true];
  const look = () => {
    most = Math.max(most, openProcessFiles());
    if (isReading) setImmediate(look);
  };
  look();
  const read = await readProcesses("stat");
  isReading = false;
  expect(read.filter(({ text }) => text.includes("(sleep)")).length).toBeGreaterThanOrEqual(40);
  expect(most).toBeGreaterThan(0);
  expect(most).toBeLessThanOrEqual(4);
});

/** Counts the files of processes that this one has open. */
function openProcessFiles(): number {
  return readdirSync("/proc/self/fd").filter((descriptor) => {
    try {
      return /^\/proc\/\d+\/stat$/.test(readlinkSync(`/proc/self/fd/${descriptor}`));
    } catch {
      return false; // Closed meanwhile.
    }
  }).length;
}

test.each([
  ["pipes", 20, /EMFILE/, 20],
  ["spawn", 0, /EMFILE/, 0],
  // Node keeps one of a process that could not be forked.
  ["spawn", 2, /EMFILE/, 1],
  ["kill", 0, /SIGKILL/, 0],
  ["watch", 0, /could not see what its processes take/, 0],
  ["git", 0, /whose index cannot be read/, 0],
])("without descriptors %s (%i left) ends as it should, and takes none", async (does, left, outcome, free) => {
  const script = join(import.meta.dirname, "few-descriptors.ts");
  const repository = join(import.meta.dirname, "../..");
  const child = spawn("prlimit", ["--nofile=128", process.execPath, script, does, String(left), repository]);
  started.push(child);
  const said: string[] = [];
  for (const stream of [child.stdout, child.stderr]) stream.setEncoding("utf8").on("data", (text) => said.push(text));
  const [code] = await once(child, "close");
  expect({ code, said: said.join("") }).toEqual({ code: 0, said: expect.stringMatching(outcome) });
  expect(JSON.parse(said.join("")).free).toBeGreaterThanOrEqual(free);
});
