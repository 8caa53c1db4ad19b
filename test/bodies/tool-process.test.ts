import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { SourceState } from "../../gen/opencode/tool/v1/source_service_pb.ts";
import { createToolProcess, type ToolProcess } from "../../src/bodies/processes/tool-process.ts";
import type { WorkerConnection } from "../../src/bodies/worker-connection.ts";
import { ToolFailure } from "../../src/tool/errors.ts";
import { startScripted } from "./start-scripted.ts";

let now: number;
let idleMs: number;
let crashes: string[];
let stale: () => void;
let process: ToolProcess;

beforeEach(() => {
  now = 1_000;
  idleMs = 60_000;
  crashes = [];
  process = createToolProcess(
    { path: "/tools", workspace: { name: "default", directory: "/" } },
    { files: ["/tools/a.ts"] },
    {
      confinement: "",
      explain: () => undefined,
      now: () => now,
      get idleMs() {
        return idleMs;
      },
      crashed: (_, reason) => void crashes.push(reason),
      async start(_, onStale) {
        stale = onStale;
        const started = startScripted();
        return { ...started, kill: async () => started.kill(), lastWords: () => "", memory: async () => 1 };
      },
    },
  );
});
afterEach(() => process.close());

const connectionOf = () => process.use(async (connection) => connection);
const ended = (connection: WorkerConnection) => vi.waitUntil(() => connection.ended.aborted, { timeout: 30_000 });

/** Ends the process as a crash does. */
async function crash(): Promise<void> {
  const work = process.use(async (connection) => {
    connection.open(() => undefined).send({ case: "start", value: { call: { input: { does: "exit" } } } });
    await ended(connection);
    throw connection.ended.reason;
  });
  await expect(work).rejects.toThrow("exit code 3");
}

test("a process without calls is stopped, and the next call starts it again", async () => {
  idleMs = 0;
  const first = await connectionOf();
  await ended(first);
  expect(process.state()).toMatchObject({ state: SourceState.IDLE, problem: "", restarts: 0, runtime: "scripted" });
  idleMs = 60_000;
  expect(await connectionOf()).not.toBe(first);
  expect(process.state()).toMatchObject({ state: SourceState.READY, restarts: 1 });
  expect(crashes).toEqual([]);
});

test("a process whose files have changed is held although it is idle, and one that is retired ends with its last call", async () => {
  idleMs = 0;
  const held = await process.use(async (connection) => {
    process.hold();
    return connection;
  });
  expect(await connectionOf()).toBe(held);
  await process.use(async (connection) => {
    process.retire();
    expect(connection.ended.aborted).toBe(false);
  });
  await ended(held);
});

test("a crash is named until the process runs again: at first at once, then after a growing time", async () => {
  await crash();
  expect(process.state()).toMatchObject({ state: SourceState.WAITING, problem: "it ended: exit code 3" });
  expect(process.isDue()).toBe(true);
  await process.hello();
  expect(process.state()).toMatchObject({ state: SourceState.READY, problem: "" });
  await crash();
  expect(process.isDue()).toBe(false);
  await expect(connectionOf()).rejects.toThrow(ToolFailure);
  await expect(connectionOf()).rejects.toThrow("The next start follows in 1 s");
  now += 1_000;
  await crash();
  now += 1_999;
  await expect(connectionOf()).rejects.toThrow("exit code 3");
  now += 1;
  await process.hello();
  now += 60_000;
  await crash();
  expect(process.isDue()).toBe(true);
  expect(crashes).toHaveLength(4);
});

test("a clock that is set back prolongs no wait after a crash", async () => {
  await crash();
  await process.hello();
  await crash();
  await expect(connectionOf()).rejects.toThrow("next start follows in 1 s");
  now -= 3_600_000;
  expect(process.isDue()).toBe(true);
  await connectionOf();
});

test("a process that was of use before it crashed is started again at once", async () => {
  await crash();
  await connectionOf();
  await crash();
  expect(process.isDue()).toBe(true);
});

test("a process that can reach what rules forbid by now gives way to another one, and its calls end where they began", async () => {
  const first = await process.use(async (connection) => {
    stale();
    expect(await connectionOf()).not.toBe(connection);
    expect(connection.ended.aborted).toBe(false);
    return connection;
  });
  await ended(first);
  expect(crashes).toEqual([]);
});
