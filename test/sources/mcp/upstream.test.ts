import { spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import type { Transport } from "@modelcontextprotocol/client";
import { afterEach, beforeEach, expect, onTestFinished, test, vi } from "vitest";
import { SourceState } from "../../../gen/opencode/tool/v1/source_service_pb.ts";
import { ProgramTransport } from "../../../src/sources/mcp/program-transport.ts";
import {
  startUpstream,
  type Upstream,
  type UpstreamOpener,
  type UpstreamState,
} from "../../../src/sources/mcp/upstream.ts";
import { upstreamTool } from "../../../src/sources/mcp/upstream-tool.ts";
import { boundTool } from "../../../src/tool/define-tool.ts";
import type { ToolContext } from "../../../src/tool/tool.ts";
import { writeOffer } from "../../mcp/write-offer.ts";

const server = resolve(import.meta.dirname, "../../mcp/upstream-server.ts");
const timeoutMs = 700;
let file = "";

beforeEach(async () => {
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] });
  file = join(await mkdtemp(join(tmpdir(), "toolgate-upstream-")), "offer.json");
});
afterEach(async () => {
  vi.useRealTimers();
  await rm(resolve(file, ".."), { recursive: true });
});

/** Tools of the server, and its behaviour from its start. */
const offer = (behaviour: string, does = "echo") =>
  writeOffer(file, { behaviour, tools: [{ name: "tool", inputSchema: { type: "object" }, does }] });

interface Started {
  upstream: Upstream;
  /** Resolves with the state when it is one that fits. */
  until(fits: (state: UpstreamState) => boolean): Promise<UpstreamState>;
  /** Kills the program that runs now. */
  kill(): void;
  clock: { now: number };
}

/** Starts a connection to the program of the test, with a clock that the test moves. */
function start(given?: UpstreamOpener): Started {
  const clock = { now: 0 };
  let kill = () => {};
  let wake = Promise.withResolvers<void>();
  const opener = given ?? {
    confinement: "",
    async open() {
      const transport = new ProgramTransport(async () => {
        const child = spawn(process.execPath, [server, file]);
        kill = () => void child.kill("SIGKILL");
        const exited = once(child, "exit").then(([code]) => `exit code ${code}`);
        const { stdin, stdout, stderr } = child;
        return { stdin, stdout, stderr, exited, kill: async () => kill() };
      });
      const [lastWords, endReason] = [() => transport.lastWords(), () => transport.endReason()];
      return { transport, lastWords, endReason, memory: async () => 0 };
    },
  };
  const settings = {
    ...{ name: "one", origin: "", timeoutMs, isTrusted: false },
    ...{ patterns: new Map<string, string>(), offers: () => true },
  };
  const upstream = startUpstream(settings, opener, {
    now: () => clock.now,
    changed() {
      wake.resolve();
      wake = Promise.withResolvers();
    },
    warn: () => {},
  });
  onTestFinished(() => upstream.close());
  return {
    ...{ upstream, clock },
    kill: () => kill(),
    async until(fits) {
      while (!fits(upstream.state())) await wake.promise;
      return upstream.state();
    },
  };
}

const is = (wanted: SourceState) => (state: UpstreamState) => state.state === wanted;

test("a server that does not answer is waited for 2 s, and stays in connection", async () => {
  await offer("mute");
  const { upstream } = start();
  let isReady = false;
  void upstream.ready().then(() => {
    isReady = true;
  });
  await vi.advanceTimersByTimeAsync(1_999);
  expect(isReady).toBe(false);
  await vi.advanceTimersByTimeAsync(1);
  expect(isReady).toBe(true);
  expect(upstream.state().state).toBe(SourceState.CONNECTING);
});

test("a server that cannot start is tried again after 1, 2, 4 and 8 s, then failed with what it printed last", async () => {
  await offer("exit");
  const { upstream, until } = start();
  for (const seconds of [1, 2, 4, 8]) {
    const { problem } = await until(is(SourceState.WAITING));
    expect(problem).toContain(`The next attempt follows in ${seconds} s`);
    await vi.advanceTimersByTimeAsync(seconds * 1_000 - 1);
    expect(upstream.state().state).toBe(SourceState.WAITING);
    await vi.advanceTimersByTimeAsync(1);
  }
  const { problem, restarts } = await until(is(SourceState.FAILED));
  expect(problem).toMatch(/cannot find my settings\s+exit code 3/);
  expect(restarts).toBe(4);
  expect(() => upstream.connection()).toThrow(/cannot find my settings/);
});

test("a server that sends requests and reads no answers is ended, with the reason", async () => {
  await offer("flood");
  const { until } = start();
  await until(is(SourceState.READY));
  const { problem } = await until(is(SourceState.WAITING));
  expect(problem).toMatch(
    /^it was ended, since it did not read 2000 messages, .*requests\. The next attempt follows in 1 s$/,
  );
});

test("a server that ends soon after each start is started again after growing waits, and one that worked for long at once", async () => {
  await offer("");
  const { until, kill, clock } = start();
  const waits: string[] = [];
  for (const worked of [0, 0, 0, 60_000, 0]) {
    await until(is(SourceState.READY));
    clock.now += worked;
    kill();
    const { problem } = await until(is(SourceState.WAITING));
    const [, seconds = ""] = /follows in (\d+) s/.exec(problem) ?? [];
    waits.push(seconds);
    await vi.advanceTimersByTimeAsync(Number(seconds) * 1_000);
  }
  expect(waits).toEqual(["1", "2", "4", "1", "2"]);
});

/** Enters the body of the server's tool, and returns its end and its progress. */
async function enter(upstream: Upstream) {
  const [definition] = upstream.state().offered;
  if (definition === undefined) throw new Error("nothing is offered");
  const cancelled = new AbortController();
  const progress: object[] = [];
  let wake = Promise.withResolvers<void>();
  const ctx = {
    signal: cancelled.signal,
    metadata(update: object) {
      progress.push(update);
      wake.resolve();
      wake = Promise.withResolvers();
    },
  };
  const ended = boundTool(upstreamTool(upstream, definition)).execute(
    {},
    { title: "", asks: [] },
    ctx as never as ToolContext,
  );
  ended.catch(() => undefined);
  while (!existsSync(`${file}.entered`)) await new Promise(setImmediate);
  return {
    ended,
    cancelled,
    async progressed() {
      const next = wake.promise;
      await offer("going on", "gated");
      await next;
    },
  };
}

test("a server whose connection never starts is tried again, and both ways to it are closed", async () => {
  const closed: string[] = [];
  const hanging = (name: string): Transport => ({
    start: () => new Promise(() => undefined),
    send: async () => undefined,
    close: async () => void closed.push(name),
  });
  const opened = vi.fn(async () => {
    const transports = { transport: hanging("new"), olderTransport: hanging("older") };
    return { ...transports, lastWords: () => "", memory: async () => 0 };
  });
  const { until } = start({ confinement: "", open: opened });
  await vi.waitUntil(() => vi.getTimerCount() >= 2);
  await vi.advanceTimersByTimeAsync(60_000);
  await vi.waitUntil(() => vi.getTimerCount() >= 1);
  await vi.advanceTimersByTimeAsync(60_000);
  expect(await until(is(SourceState.WAITING))).toMatchObject({
    problem: expect.stringContaining("was not ready within 60 s"),
  });
  expect(new Set(closed)).toEqual(new Set(["new", "older"]));
});

test("progress starts the time of silence again", async () => {
  await offer("", "gated");
  const { upstream, until } = start();
  await until(is(SourceState.READY));
  const { ended, progressed } = await enter(upstream);
  for (let count = 0; count < 2; count += 1) {
    await vi.advanceTimersByTimeAsync(timeoutMs - 1);
    await progressed();
  }
  await offer("done", "gated");
  expect(await ended).toMatchObject({ output: "done" });
});

test("silence ends the call, and cancels it at the server", async () => {
  await offer("", "gated");
  const { upstream, until } = start();
  await until(is(SourceState.READY));
  const { ended } = await enter(upstream);
  await vi.advanceTimersByTimeAsync(timeoutMs);
  await expect(ended).rejects.toThrow("The MCP server one was silent for 0.7 s.");
  while (!existsSync(`${file}.cancelled`)) await new Promise(setImmediate);
});

test("a cancelled call is cancelled at the server, too", async () => {
  await offer("", "gated");
  const { upstream, until } = start();
  await until(is(SourceState.READY));
  const { ended, cancelled } = await enter(upstream);
  cancelled.abort(new Error("enough"));
  await expect(ended).rejects.toThrow("enough");
  while (!existsSync(`${file}.cancelled`)) await new Promise(setImmediate);
});
