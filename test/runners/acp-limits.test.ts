import { spawn } from "node:child_process";
import { mkdtempSync, realpathSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, expect, test } from "vitest";
import type { AcpHost } from "../../src/agents/runners/acp/acp-host.ts";
import { createAcpRunner } from "../../src/agents/runners/acp/acp-runner.ts";
import { acpTimes } from "../../src/agents/runners/acp/acp-runtime.ts";
import { agentTraffic } from "../../src/agents/runners/acp/agent-stream.ts";
import type { RunUpdate } from "../../src/agents/runners/runner.ts";
import { isAlive } from "../tools/processes.ts";
import type { AcpStep } from "./fake-acp-agent.ts";

const workspace = realpathSync(mkdtempSync(join(tmpdir(), "toolgate-acp-")));
afterAll(() => rmSync(workspace, { recursive: true }));

const started: number[] = [];
let logCount = 0;

/** A host whose programs are real, and whose approver answers when `answer` resolves. */
function hostWith(answer: () => Promise<void>): AcpHost {
  return {
    confinement: () => "without a sandbox",
    async start({ argv: [program, ...args], cwd, env }) {
      const child = spawn(program, args, { cwd, env, stdio: "pipe" });
      started.push(child.pid ?? 0);
      child.stdin.on("error", () => undefined);
      const exited = new Promise<string>((resolve) => child.once("exit", (code) => resolve(`exit code ${code}`)));
      const kill = async () => {
        child.kill("SIGKILL");
        await exited;
      };
      return { stdin: child.stdin, stdout: child.stdout, stderr: child.stderr, exited, kill };
    },
    openTools: async () => ({ url: "http://127.0.0.1:9/mcp", token: "none", close: () => undefined }),
    async begin() {
      await answer();
      return { case: "refused", message: "no" };
    },
    finish: async () => undefined,
    cancel: async () => undefined,
    log: () => {
      logCount += 1;
    },
  };
}

/** Runs the agent with these steps to its end; returns its last update. */
async function lastOf(
  steps: readonly AcpStep[],
  { args = [] as string[], limits = {}, answer = async (): Promise<void> => undefined } = {},
): Promise<RunUpdate | undefined> {
  const program = {
    ...{ name: "fake", command: process.execPath, cwd: ".", agents: ["fake"], env: {} },
    args: [join(import.meta.dirname, "fake-acp-agent.ts"), ...args],
  };
  const runner = createAcpRunner(hostWith(answer), program, limits);
  let last: RunUpdate | undefined;
  const run = {
    ...{ id: "run_1", childSession: "ses_1", agent: "fake", cwd: workspace, isResumed: false, principal: "p" },
    parentCall: { root: "ses_0", sessionId: "ses_0", callId: "t1" },
    prompt: JSON.stringify(steps),
    signal: new AbortController().signal,
  };
  for await (const update of runner.start(run)) last = update;
  expect(runner.freeCapacity()).toBe(8);
  expect(await isAlive(started.at(-1) ?? 0)).toBe(false);
  return last;
}

const failed = (message: string) => ({ type: "failed", message: expect.stringContaining(message) });
const options = [
  { optionId: "no", name: "", kind: "reject_once" },
  { optionId: "yes", name: "", kind: "allow_once" },
];
const toolCall = { toolCallId: "c1", title: "x", kind: "execute", rawInput: { command: "x" } };

test("a program that does not answer is stopped", async () => {
  const times = { ...acpTimes, startMs: 1_000 };
  expect(await lastOf([], { args: ["mute"], limits: { times } })).toEqual(
    failed("did not answer initialize within 1 s"),
  );
});

test("a program that falls silent is stopped, but not while an approver is waited for", async () => {
  const times = { ...acpTimes, silenceMs: 4_000 };
  const slow = () => new Promise<void>((resolve) => setTimeout(resolve, 6_000));
  const steps: AcpStep[] = [{ do: "ask", params: { toolCall, options } }, { do: "hang" }];
  expect(await lastOf([{ do: "hang" }], { limits: { times } })).toEqual(failed("sent nothing for 4 s"));
  const patient = lastOf([steps[0] as AcpStep], { limits: { times }, answer: slow });
  expect(await patient).toMatchObject({ type: "done", text: expect.stringContaining('["no"]') });
});

test.each<[string, Partial<typeof agentTraffic>, AcpStep, string]>([
  [
    "messages",
    { messages: 50 },
    { do: "print", text: '{"jsonrpc":"2.0","method":"x"}', times: 100 },
    "more than 50 messages",
  ],
  [
    "bytes",
    { bytes: 100_000 },
    { do: "print", text: '{"jsonrpc":"2.0","method":"x"}', times: 10_000 },
    "more than 100000 bytes",
  ],
  [
    "open requests",
    { openRequests: 8 },
    {
      do: "print",
      text: `{"jsonrpc":"2.0","id":"r","method":"session/request_permission","params":${JSON.stringify({ toolCall, options })}}`,
      times: 20,
    },
    "more than 8 requests without waiting",
  ],
])("a flood of %s ends the run", async (_what, traffic, step, reason) => {
  const limits = { traffic: { ...agentTraffic, ...traffic } };
  const never = () => new Promise<void>(() => undefined);
  expect(await lastOf([step, { do: "hang" }], { limits, answer: never })).toEqual(failed(reason));
});

test("requests that cannot be judged are refused, and the log is not flooded with them", async () => {
  const broken = () => Promise.reject(new Error("the store is away"));
  const asks = Array.from({ length: 30 }, (): AcpStep => ({ do: "ask", params: { toolCall, options } }));
  logCount = 0;
  const last = await lastOf(asks, { answer: broken });
  expect(last).toMatchObject({ type: "done", text: expect.stringContaining("30 were refused") });
  expect(logCount).toBe(10);
});
