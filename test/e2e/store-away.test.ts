import { execFileSync } from "node:child_process";
import { existsSync } from "node:fs";
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { expect, onTestFinished, test, vi } from "vitest";
import { ToolEffects, ToolErrorReason } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { connect } from "./clients.ts";
import { read } from "./reading.ts";
import { useService } from "./service.ts";

const service = useService({ settings: "lease_ms = 1000\n" });

/** Makes every write of the service to a file fail, until the returned function is called. */
function refuseWrites(): () => void {
  const limit = (bytes: string) =>
    execFileSync("prlimit", ["--pid", String(service.pid), `--fsize=${bytes}:unlimited`]);
  limit("0");
  const allow = () => void limit("unlimited");
  onTestFinished(allow);
  return allow;
}

/** Returns the value of a sample of the metrics. */
async function metric(sample: string): Promise<number> {
  const headers = { authorization: "Bearer admin-token-for-tests" };
  const text = await (await fetch(`${service.url}/metrics`, { headers })).text();
  return Number(
    text
      .split("\n")
      .find((line) => line.startsWith(`${sample} `))
      ?.slice(sample.length + 1),
  );
}

/** Starts a command that ends when its file appears; returns the reading of its events, and the way to end it. */
async function startCommand(callId: string) {
  const caller = connect(service, "caller");
  const sessionId = await caller.newSession();
  const input = { command: `touch ${callId}.began; until [ -e ${callId} ]; do sleep 0.05; done` };
  const reading = read(caller.tools.executeTool({ sessionId, callId, tool: "bash", agent: "free", input }));
  await vi.waitUntil(() => existsSync(join(service.workspace, `${callId}.began`)), { timeout: 30_000 });
  return { reading, end: () => writeFile(join(service.workspace, callId), "") };
}

const failedFinishes = () => metric('toolgate_store_errors_total{operation="finish_call"}');

test("a call that ends while its store is away for a moment keeps its result", async () => {
  const { reading, end } = await startCommand("moment");
  const before = await failedFinishes();
  const allow = refuseWrites();
  await end();
  await vi.waitUntil(async () => (await failedFinishes()) > before, { timeout: 30_000 });
  allow();
  expect((await reading.end()).state.case).toBe("completed");
});

// In the time of a lease the run tries five times to record the result, then five times that it is lost.
test.each([
  ["the run reports that it is lost", "reported", 6],
  ["the run tries no more", "late", 13],
])(
  "a call whose store is away until its lease is over ends RESULT_NOT_STORED, not as a failure of the tool: back when %s",
  async (_, callId, failures) => {
    const { reading, end } = await startCommand(callId);
    const before = await failedFinishes();
    const allow = refuseWrites();
    await end();
    await vi.waitUntil(async () => (await failedFinishes()) >= before + failures, { timeout: 30_000 });
    allow();
    expect((await reading.end()).state).toMatchObject({
      case: "error",
      value: { reason: ToolErrorReason.RESULT_NOT_STORED, effects: ToolEffects.UNKNOWN },
    });
  },
);
