import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, onTestFinished, test, vi } from "vitest";
import { PermissionReply } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { openSqliteStore } from "../../src/store/sqlite/store.ts";
import { createStoreMetrics } from "../../src/telemetry/telemetry.ts";
import { connect } from "../e2e/clients.ts";
import { read } from "../e2e/reading.ts";
import { type Service, startService } from "../e2e/service.ts";
import { addSession, callRef, openCall, refusal } from "../store/fixture.ts";

test("the metrics have the open requests with the age of the oldest, and the running calls", async () => {
  const service = await startService();
  const [agent, person] = [connect(service, "caller"), connect(service, "approver")];
  const sessionId = await agent.newSession();
  const execute = (callId: string, command: string) =>
    read(agent.tools.executeTool({ sessionId, callId, tool: "bash", input: { command } }));
  expect(await valuesOf(service)).toMatchObject({
    toolgate_open_requests: 0,
    toolgate_oldest_request_age_seconds: 0,
    toolgate_running_calls: 0,
  });
  const [one, two] = [execute("c1", "echo 1"), execute("c2", "echo 2")];
  const first = await one.until("permissionAsked");
  await two.until("permissionAsked");
  const input = { command: "sleep 60" };
  const running = agent.tools.callTool({ sessionId, callId: "c3", agent: "free", tool: "bash", input });
  await vi.waitUntil(async () => (await valuesOf(service)).toolgate_running_calls === 1, { timeout: 30_000 });
  const waiting = await valuesOf(service);
  expect(waiting.toolgate_open_requests).toBe(2);
  expect(waiting.toolgate_oldest_request_age_seconds).toBeGreaterThan(0);

  const answer = { sessionId, permissionId: first.id, reply: PermissionReply.ONCE };
  await person.permissions.respondToPermission(answer);
  await agent.tools.cancelTool({ sessionId, callId: "c3" });
  await Promise.all([one.end(), running]);
  const after = await valuesOf(service);
  expect(after).toMatchObject({ toolgate_open_requests: 1, toolgate_running_calls: 0 });
  // A call that asks has a step when it begins, one for its request, one for its answer and start, and one at its end.
  const stepsOf = (name: string) => after[`toolgate_store_duration_seconds_count{operation="${name}"}`] ?? 0;
  const steps = ["open_call", "open_asks", "settle_ask", "finish_call"].map(stepsOf);
  expect(steps).toEqual([3, 2, 1, 2]);
  // On a busy machine judging an answer takes so long that the start is another step.
  expect(stepsOf("start_call")).toBeLessThanOrEqual(1);
  await agent.tools.cancelTool({ sessionId, callId: "c2" });
  await two.end();
  // A rejection withdraws the other request of its call.
  const outside = execute("c4", "touch /opt/outside.txt");
  const rejected = await outside.until("permissionAsked");
  const { permissions: both } = await person.permissions.listPermissions({ sessionId });
  expect(both).toHaveLength(2);
  await person.permissions.respondToPermission({
    ...{ sessionId, permissionId: rejected.id, reply: PermissionReply.REJECT },
  });
  await outside.end();
  // Counted are answers, not withdrawals; by how, and not by whom.
  const answers = Object.entries(await valuesOf(service)).filter(([name]) => name.startsWith("toolgate_answers_total"));
  const answerOf = (outcome: string) => `toolgate_answers_total{kind="",method="token",outcome="${outcome}"}`;
  expect(answers).toEqual([
    [answerOf("once"), 1],
    [answerOf("reject"), 1],
  ]);
});

test("the metrics have the build, the process and the event loop", async () => {
  const service = await startService();
  const values = await valuesOf(service);
  const names = Object.keys(values);
  expect(names.find((name) => name.startsWith("toolgate_build_info"))).toMatch(
    /^toolgate_build_info\{version="[\d.]+",node="[\d.]+",store="sqlite"\}$/,
  );
  expect(values.process_start_time_seconds).toBeLessThan(Date.now() / 1_000);
  for (const name of ["process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds"]) {
    expect(values[name]).toBeGreaterThan(0);
  }
  expect(values['toolgate_store_bytes{part="database"}']).toBeGreaterThan(0);
  for (const part of ["free", "log"]) expect(values[`toolgate_store_bytes{part="${part}"}`]).toBeGreaterThanOrEqual(0);
  for (const stat of ["mean", "p99", "max"]) {
    expect(values[`nodejs_eventloop_lag_seconds{stat="${stat}"}`]).toBeGreaterThanOrEqual(0);
  }
});

test("a store that is not available is an error of its operation, a refusal by a guard is none", async () => {
  const directory = await mkdtemp(join(tmpdir(), "toolgate-metrics-"));
  onTestFinished(() => rm(directory, { recursive: true }));
  const metrics = createStoreMetrics();
  const store = metrics.measure(await openSqliteStore({ directory }));
  const errors = () =>
    metrics
      .families({})
      .find(({ name }) => name === "toolgate_store_errors_total")
      ?.samples.find((sample) => sample.includes("open_call"));
  await addSession(store);
  await refusal(openCall(store, callRef(), { maxOpenCalls: 0 }));
  expect(errors()).toBe('{operation="open_call"} 0');
  await store.calls.close();
  await refusal(openCall(store, callRef()));
  expect(errors()).toBe('{operation="open_call"} 1');
});

/** Reads the metrics: name with labels → value. */
async function valuesOf({ url }: Service): Promise<Record<string, number>> {
  const response = await fetch(`${url}/metrics`, { headers: { authorization: "Bearer watcher-token-for-tests" } });
  const lines = (await response.text()).split("\n").filter((line) => line !== "" && !line.startsWith("#"));
  return Object.fromEntries(
    lines.map((line) => [line.slice(0, line.lastIndexOf(" ")), Number(line.slice(line.lastIndexOf(" ") + 1))]),
  );
}
