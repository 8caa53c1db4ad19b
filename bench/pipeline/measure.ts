/** Calls a tool that does nothing, in this process and with a store in memory, and prints what a call takes as JSON. */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { create } from "@bufbuild/protobuf";
import * as z from "zod";
import { CallToolRequestSchema } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { openCrashMarks } from "../../src/call/crash-marks.ts";
import { createReplica } from "../../src/compose/replica.ts";
import { readLimits } from "../../src/config/schema.ts";
import type { Principal } from "../../src/core/principal.ts";
import { openSqliteStore } from "../../src/store/sqlite/store.ts";
import { boundTool, defineTool } from "../../src/tool/define-tool.ts";

const [warmUp = 0, rounds = 0, calls = 0] = process.argv.slice(2).map(Number);

const folder = mkdtempSync(join(process.platform === "linux" ? "/dev/shm" : tmpdir(), "toolgate-pipeline-"));
const silent = { debug() {}, info() {}, warn() {}, error: (message: string) => process.stderr.write(`${message}\n`) };
const execute = async ({ text }: { text: string }) => ({ output: text });
const noop = defineTool({
  name: "noop",
  description: "Does nothing.",
  input: z.object({ text: z.string() }),
  plan: () => ({ title: "noop", asks: [] }),
  execute,
});
const store = await openSqliteStore({ directory: folder, log: silent });
const replica = createReplica({
  config: {
    askMs: 900_000,
    dataDirectory: folder,
    file: join(folder, "toolgate.toml"),
    leaseMs: 15_000,
    limits: {
      ...readLimits(),
      requestBytes: 4_194_304,
      inputBytes: 524_288,
      outputBytes: 268_435_456,
      timeoutMs: 120_000,
      maxTimeoutMs: 3_600_000,
      openAsks: 100,
      runningCalls: 64,
      replicaRunning: 1_000,
      reportMs: 600_000,
      collectMs: 600_000,
    },
    unattended: "wait",
    workspaces: new Map([["default", import.meta.dirname]]),
  },
  rules: { config: [], agents: new Map() },
  store,
  replicaId: "bench",
  tools: [noop],
  crashMarks: openCrashMarks(join(folder, "entered"), "bench"),
  observer: {
    began: () => ({ step: (_, work) => work(undefined), over() {} }),
    ended() {},
    waited() {},
    differed() {},
  },
  log: silent,
});
const principal: Principal = {
  id: "bench",
  roles: new Set(["caller"]),
  agents: ["*"],
  workspaces: ["*"],
  lineage: ["bench"],
  answersOwn: false,
};
const { id: sessionId } = await replica.sessions.create(principal, {
  ...{ sessionId: "", workspace: "default", agent: "build", rules: [], parentSessionId: "", title: "" },
  ...{ directory: "", expectedStoreId: "", $typeName: "opencode.tool.v1.CreateSessionRequest" },
});
const signal = new AbortController().signal;
let count = 0;

/** One whole call, from the request to its stored end. */
async function call(): Promise<void> {
  count += 1;
  const input = { text: `hello ${count}` };
  const request = create(CallToolRequestSchema, { sessionId, callId: `c${count}`, tool: "noop", input });
  const accepted = await replica.calls.open(principal, request);
  const { part } = await replica.calls.wait(accepted.record, 30_000, signal);
  if (part.state.case !== "completed") throw new Error(`a call ended as ${part.state.case}`);
}

/** The median of the rounds, in µs a call; a round before them is not counted. */
async function micros(work: () => Promise<unknown>, times: number, width = 1): Promise<number> {
  for (let i = 0; i < times / 4; i++) await work();
  const taken: number[] = [];
  for (let round = 0; round < rounds; round++) {
    const began = process.hrtime.bigint();
    for (let i = 0; i < times; i += width) await Promise.all(Array.from({ length: width }, work));
    taken.push(Number(process.hrtime.bigint() - began) / 1_000 / times);
  }
  return taken.sort((a, b) => a - b)[Math.floor(rounds / 2)] ?? Number.NaN;
}

for (let i = 0; i < warmUp; i += 16) await Promise.all(Array.from({ length: 16 }, call));
const direct = await micros(() => execute({ text: "hello" }), calls * 100);
const decoding = await micros(async () => boundTool(noop).decode({ text: "hello" }), calls * 100);
const began = Number(process.hrtime.bigint() / 1_000n);
const alone = await micros(call, calls);
const together = await micros(call, calls, 16);
const ended = Number(process.hrtime.bigint() / 1_000n);
process.stdout.write(`${JSON.stringify({ direct, decoding, alone, together, began, ended })}\n`);
await replica.calls.drain(0);
await store.calls.close();
rmSync(folder, { recursive: true, force: true });
