import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { expect, test, vi } from "vitest";
import { PermissionReply as Reply } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { toolgate } from "../cli/toolgate.ts";
import { connect } from "../e2e/clients.ts";
import { hostOf, hostTokens } from "../e2e/host.ts";
import { read } from "../e2e/reading.ts";
import { type Service, startService } from "../e2e/service.ts";

test("each end is one log line, one count and one entry of the stats, whatever caused it", async () => {
  const service = await startService();
  await everyEnd(service);
  const lines = (await logOf(service, 7)).filter(({ message }) => message === "call ended");
  const ends = lines.map(({ callId, service, reason = "completed" }) => `${callId} ${service} ${reason}`);
  expect(ends.toSorted()).toEqual([
    "c1 tool.echo completed",
    "c2 tool.bash completed",
    "c3 tool.bash rejected",
    "c4 tool.bash cancelled",
    "c5 tool.bash timeout",
    "c6 tool.read failed",
    'c7 tool.no "such" tool unknown_tool',
  ]);

  const metrics = await metricsOf(service);
  expect(metrics).toContain('toolgate_calls_total{tool="bash"} 4\n');
  expect(metrics).toContain('toolgate_calls_total{tool="(unknown)"} 1\n');
  for (const reason of ["rejected", "cancelled", "timeout"])
    expect(metrics).toContain(`toolgate_call_errors_total{tool="bash",reason="${reason}"} 1\n`);
  // c2, c3 and c4 waited, but c4 was cancelled; c5 did not wait.
  expect(metrics).toContain('toolgate_call_wait_seconds_count{tool="bash"} 2\n');

  const cli = { TOOLGATE_URL: service.url, TOOLGATE_TOKEN: "watcher-token-for-tests" };
  const { stdout } = await toolgate(["stats", "--json"], cli);
  const stats = stdout
    .trimEnd()
    .split("\n")
    .map((line) => JSON.parse(line));
  expect(stats).toMatchObject([
    { tool: "(unknown)", count: "1", errors: "1" },
    { tool: "bash", count: "4", errors: "3", timeouts: "1" },
    { tool: "echo", count: "1" },
    { tool: "read", count: "1", errors: "1" },
  ]);
  const shown = await toolgate(["stats"], cli);
  expect(shown.stdout).toMatch(/^tool +count +average +errors +timeouts\n\(unknown\) +1 +0 ms +1 +0\nbash +4 /);

  const asks = await toolgate(["stats", "--asks", "--days", "1", "--json"], cli);
  const { total, rules } = JSON.parse(asks.stdout);
  expect(total).toMatchObject({ requests: 3, approved: 1, rejected: 1, unanswered: 1 });
  expect(rules).toContainEqual(expect.objectContaining({ name: "no rule: bash", approved: 1, rejected: 1 }));
  expect(asks.stdout).not.toContain("approver");
  const cause = 'agent="build",rule="no rule: bash"';
  expect(metrics).toContain(`toolgate_attention_requests_total{${cause}} 3\n`);
  expect(metrics).toContain('toolgate_attention_calls_total{agent="build"} ');
  for (const outcome of ["approved", "rejected"])
    expect(metrics).toContain(`toolgate_attention_answer_seconds_count{${cause},outcome="${outcome}"} 1\n`);
  expect((await toolgate(["stats", "--asks"], cli)).stdout).toMatch(
    /^asked by +calls +asked of 100 .*\nall +\d+ +\d+\.\d /,
  );
  expect(await toolgate(["stats", "--asks", "--days", "x"], cli)).toMatchObject({ code: 2 });
});

test("the wait of a call that its agent runs counts from its request to the last answer, whatever the answer", async () => {
  const service = await startService({ settings: hostTokens });
  const host = hostOf(service, "waits");
  const { permissions } = connect(service, "approver");
  for (const [command, reply] of [
    ["make && git push", Reply.ONCE],
    ["make clean", Reply.REJECT],
  ] as const) {
    const waiting = await host.waiting("Bash", { command });
    expect(await waits(service, "claude:Bash")).toBe(command === "make clean" ? 1 : 0);
    for (const { sessionId, id } of waiting.permissions)
      await permissions.respondToPermission({ sessionId, permissionId: id, reply });
  }
  const unmapped = await host.waiting("Unmapped", {});
  for (const { sessionId, id } of unmapped.permissions)
    await permissions.respondToPermission({ sessionId, permissionId: id, reply: Reply.ONCE });
  expect(await waits(service, "claude:Bash")).toBe(2);
  expect(await waits(service, "(unknown)")).toBe(1);
});

/** The number of waits that the metrics count for a tool. */
async function waits(service: Service, tool: string): Promise<number> {
  const line = (await metricsOf(service))
    .split("\n")
    .find((line) => line.startsWith(`toolgate_call_wait_seconds_count{tool="${tool}"}`));
  return Number(line?.split(" ").at(-1) ?? 0);
}

test("a command that fails is a failure in metadata, log, metrics, terminal and exit code", async () => {
  const service = await startService({ settings: '[permission]\nbash = "allow"\n' });
  const agent = connect(service, "caller");
  const sessionId = await agent.newSession();
  const cli = { TOOLGATE_URL: service.url, TOOLGATE_TOKEN: "caller-token-for-tests" };
  const call = (callId: string, command: string, ...options: string[]) =>
    toolgate(
      ["call", "bash", JSON.stringify({ command }), "--session", sessionId, "--call-id", callId, ...options],
      cli,
    );
  const failing = await call("c1", "exit 3");
  expect(failing).toMatchObject({ code: 7, stderr: expect.stringContaining("✗ exit code 3  bash  exit 3") });
  expect(failing.stderr).not.toContain("✓");
  const signalled = await call("c2", "kill -9 $$");
  expect(signalled).toMatchObject({ code: 7 });
  expect(await call("c1", "exit 3", "--detach")).toMatchObject({ code: 7 });
  expect(await call("c3", "true")).toMatchObject({ code: 0, stderr: expect.stringContaining("✓ completed  bash") });
  const { part } = await agent.tools.getToolPart({ sessionId, callId: "c1" });
  expect(part?.state).toMatchObject({ case: "completed", value: { metadata: { exit: 3, signal: null } } });
  const logged = (await logOf(service, 3)).filter(({ message }) => message === "call ended");
  expect(logged).toMatchObject([
    { callId: "c1", success: false, exit: 3 },
    { callId: "c2", success: false },
    { callId: "c3", success: true },
  ]);
  const metrics = await metricsOf(service);
  expect(metrics).toContain('toolgate_command_failures_total{tool="bash"} 2\n');
  expect(metrics).not.toContain("toolgate_call_errors_total{");
});

test("a plan with a problem exits with the code that the call would end with", async () => {
  const service = await startService();
  const cli = { TOOLGATE_URL: service.url, TOOLGATE_TOKEN: "caller-token-for-tests" };
  const plan = await toolgate(["plan", "read", '{"filePath": "missing.txt"}'], cli);
  expect(plan).toMatchObject({ code: 1, stdout: expect.stringContaining("missing.txt") });
  expect(await toolgate(["plan", "echo", '{"text": "x"}'], cli)).toMatchObject({ code: 0 });
});

test("a log line has truncated input and output without what looks like a secret", async () => {
  const service = await startService();
  const agent = connect(service, "caller");
  const sessionId = await agent.newSession();
  const command = `API_TOKEN=tok-8812-aab printf '%s\\n' '{"password": "hunter22"}' "$(seq 500)"`;
  await agent.tools.callTool({ sessionId, callId: "c1", agent: "free", tool: "bash", input: { command } });
  const [line] = (await logOf(service, 1)).filter(({ message }) => message === "call ended");
  expect(line).toMatchObject({
    level: "info",
    service: "tool.bash",
    sessionId,
    callId: "c1",
    agent: "free",
    success: true,
    args: { command: `API_TOKEN=[redacted] printf '%s\\n' '{"password": [redacted]}' "$(seq 500)"` },
    result: { bytes: 1917 },
  });
  expect(line.duration).toBeGreaterThan(0);
  expect(line.result.text).toMatch(/^\{"password": \[redacted\]\}\n1\n2\n3\n[\d\n]+…$/);
  expect(line.result.text.length).toBeLessThan(202);
});

/** Makes calls that end in every way that needs no fault. */
async function everyEnd(service: Service): Promise<void> {
  const agent = connect(service, "caller");
  const person = connect(service, "approver");
  const sessionId = await agent.newSession();
  const execute = (callId: string, tool: string, input: Record<string, string | number>, fields = {}) =>
    read(agent.tools.executeTool({ sessionId, callId, tool, input, ...fields }));
  const answer = async (callId: string, reply: Reply) => {
    const call = execute(callId, "bash", { command: `echo ${callId}` });
    const { id } = await call.until("permissionAsked");
    await person.permissions.respondToPermission({ sessionId, permissionId: id, reply });
    await call.end();
  };
  await execute("c1", "echo", { text: "hello" }).end();
  await answer("c2", Reply.ONCE);
  await answer("c3", Reply.REJECT);
  const waiting = execute("c4", "bash", { command: "echo c4" });
  await waiting.until("permissionAsked");
  await agent.tools.cancelTool({ sessionId, callId: "c4" });
  await waiting.end();
  await execute("c5", "bash", { command: "sleep 60" }, { agent: "free", timeoutMs: 200 }).end();
  await execute("c6", "read", { filePath: "missing.txt" }).end();
  await execute("c7", 'no "such" tool', {}).end();
}

async function logOf({ data }: Service, ended: number) {
  const file = join(data, "log", "toolgate.log");
  const count = async () => (await readFile(file, "utf8").catch(() => "")).split('"call ended"').length - 1;
  await vi.waitUntil(async () => (await count()) >= ended, { timeout: 60_000 });
  const text = await readFile(file, "utf8");
  return text
    .trimEnd()
    .split("\n")
    .map((line) => JSON.parse(line));
}

async function metricsOf({ url }: Service): Promise<string> {
  return await (await fetch(`${url}/metrics`, { headers: { authorization: "Bearer watcher-token-for-tests" } })).text();
}
