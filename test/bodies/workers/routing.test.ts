import type { MessageInitShape } from "@bufbuild/protobuf";
import { describe, expect, onTestFinished, test } from "vitest";
import { PermissionReply, ToolEffects, ToolErrorReason } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { WorkerAffinity, WorkerFailure, type WorkerPlannedSchema } from "../../../gen/opencode/tool/v1/worker_pb.ts";
import { connect } from "../../e2e/clients.ts";
import { useService } from "../../e2e/service.ts";
import { connectWorker, echoTool, newInstance, type RawHello } from "./raw-worker.ts";

const service = useService({
  settings: `
[permission]
"ci_*" = "allow"
ci_asks = "ask"
[[token]]
id = "ci-worker"
roles = ["worker"]
tools = ["ci_*"]
value = "ci-worker-token-for-tests"
`,
});
type Worker = Awaited<ReturnType<typeof connectWorker>>;
type Planned = MessageInitShape<typeof WorkerPlannedSchema>;
const agent = () => connect(service, "caller");
const person = () => connect(service, "approver").permissions;

/** Connects a worker that is gone with the test. */
async function workerFor(tool: ReturnType<typeof echoTool>, hello: RawHello = {}): Promise<Worker> {
  const worker = await connectWorker(service, { tools: [tool], resumeMs: 0, ...hello });
  onTestFinished(worker.cut);
  return worker;
}

/** Resolves with the state in which a call ends. */
async function call(tool: string, fields: { text?: string; sessionId?: string; queueMs?: number } = {}) {
  const { text = "hello", ...others } = fields;
  const { part } = await agent().tools.callTool({ tool, input: { text }, waitMs: 60_000, ...others });
  return part?.state;
}

/** Answers each plan that the service wants, as often as it does. */
async function answerPlans(worker: Worker, planned: () => Planned): Promise<void> {
  for (;;) {
    const { planId } = await worker.next("plan");
    worker.send({ case: "planned", value: { ...planned(), planId } });
  }
}

/** Answers the open request of a session, and returns its patterns. */
async function approve(sessionId: string): Promise<string[]> {
  const open = async () => (await person().listPermissions({ sessionId })).permissions;
  await expect.poll(open).toHaveLength(1);
  const [{ id: permissionId = "", patterns = [] } = {}] = await open();
  await person().respondToPermission({ sessionId, permissionId, reply: PermissionReply.ONCE });
  return patterns;
}

describe("the process of a call", () => {
  test("is that of its session's last call, if the tool prefers it and it has capacity", async () => {
    const tool = echoTool("ci_session", { affinity: WorkerAffinity.PREFER_SESSION });
    const small = await workerFor(tool, { capacity: 2 });
    const sessionId = await agent().newSession();
    const first = call("ci_session", { sessionId });
    small.complete(await small.next("start"));
    await first;
    const large = await workerFor(tool, { capacity: 100 });
    const running = ["one", "two"].map((text) => call("ci_session", { sessionId, text }));
    const starts = [await small.next("start"), await small.next("start")];
    const elsewhere = call("ci_session", { sessionId, text: "three" });
    large.complete(await large.next("start"), "large");
    expect(await elsewhere).toMatchObject({ value: { output: "large" } });
    for (const start of starts) small.complete(start, "small");
    for (const each of running) expect(await each).toMatchObject({ value: { output: "small" } });
  });

  test("is the one with the most capacity otherwise", async () => {
    await workerFor(echoTool("ci_most"), { capacity: 1 });
    const large = await workerFor(echoTool("ci_most"), { capacity: 5 });
    const calling = call("ci_most");
    large.complete(await large.next("start"));
    expect((await calling)?.case).toBe("completed");
  });

  test("never gets more bodies than its capacity, or than the tool allows in one process", async () => {
    for (const [tool, capacity] of [
      [echoTool("ci_two"), 2],
      [echoTool("ci_bounded", { maxConcurrent: 2 }), 9],
    ] as const) {
      const worker = await workerFor(tool, { capacity });
      const calls = Array.from({ length: 5 }, () => call(tool.name));
      const running = [await worker.next("start"), await worker.next("start")];
      for (let started = 2; started < 5; started++) {
        // The service answers this, so what it had sent before is here.
        worker.report({ assignment: "unknown" }, { case: "progress", value: {} });
        await worker.next("ended");
        expect(worker.untaken("start")).toBe(0);
        worker.complete(running.shift() ?? { assignment: "" });
        await worker.next("ended");
        running.push(await worker.next("start"));
      }
      for (const start of running) worker.complete(start);
      for (const each of await Promise.all(calls)) expect(each?.case).toBe("completed");
    }
  });

  test("gets none while its capacity is 0, and what waited when it has some again", async () => {
    const worker = await workerFor(echoTool("ci_paused"));
    worker.send({ case: "capacity", value: { capacity: 0 } });
    worker.report({ assignment: "unknown" }, { case: "progress", value: {} });
    await worker.next("ended");
    const unavailable = { reason: ToolErrorReason.UNAVAILABLE, effects: ToolEffects.NONE };
    expect(await call("ci_paused", { queueMs: 0 })).toMatchObject({ value: unavailable });
    const calling = call("ci_paused");
    worker.send({ case: "capacity", value: { capacity: 1 } });
    worker.complete(await worker.next("start"));
    expect((await calling)?.case).toBe("completed");
    expect(worker.untaken("start")).toBe(0);
  });

  test("gets none while it drains, but ends what it runs, and may leave then", async () => {
    const worker = await workerFor(echoTool("ci_drains"));
    const running = call("ci_drains");
    const start = await worker.next("start");
    worker.send({ case: "capacity", value: { capacity: 4, draining: true } });
    worker.report({ assignment: "unknown" }, { case: "progress", value: {} });
    await worker.next("ended");
    expect(await call("ci_drains", { queueMs: 0 })).toMatchObject({ value: { reason: ToolErrorReason.UNAVAILABLE } });
    expect(worker.untaken("leave")).toBe(0);
    worker.complete(start, "ran");
    expect(await running).toMatchObject({ value: { output: "ran" } });
    expect(await worker.next("leave")).toMatchObject({ stop: true });
  });

  test("is another one if it does not enter the body", async () => {
    const refusing = await workerFor(echoTool("ci_refused"), { capacity: 1 });
    const calling = call("ci_refused");
    const start = await refusing.next("start");
    const next = await workerFor(echoTool("ci_refused"), { capacity: 9 });
    const outcome = { case: "notEntered", value: "it stops" } as const;
    refusing.report(start, { case: "result", value: { outcome } });
    next.complete(await next.next("start"), "next");
    expect(await calling).toMatchObject({ value: { output: "next" } });
  });

  test("is offered a body that it does not enter again after growing pauses, until the call ends UNAVAILABLE", async () => {
    const worker = await workerFor(echoTool("ci_refuses"), { instanceId: newInstance() });
    let offers = 0;
    const refuse = async () => {
      for (;;) {
        const start = await worker.next("start");
        offers += 1;
        if (start.call?.input?.text === "other") worker.complete(start, "other");
        else {
          const outcome = { case: "notEntered", value: "its disk is full" } as const;
          worker.report(start, { case: "result", value: { outcome } });
        }
      }
    };
    void refuse();
    const sessionId = await agent().newSession();
    const refused = call("ci_refuses", { sessionId, queueMs: 2_000 });
    // Meanwhile the worker gets other calls of the same session.
    await expect.poll(() => offers).toBeGreaterThan(0);
    expect(await call("ci_refuses", { sessionId, text: "other" })).toMatchObject({ value: { output: "other" } });
    expect(await refused).toMatchObject({
      value: {
        reason: ToolErrorReason.UNAVAILABLE,
        effects: ToolEffects.NONE,
        error: expect.stringMatching(
          new RegExp(`offered \\d+ times.* the worker "ci" \\(${worker.instanceId}\\).* "its disk is full"`),
        ),
      },
    });
    // With pauses that double, ten offers take more than eight minutes.
    expect(offers).toBeGreaterThan(2);
    expect(offers).toBeLessThan(10);
  });
});

describe("a body of which its worker has reported is not entered again, although the worker says that it never was", () => {
  const reported = async (tool: string, instanceId: string) => {
    const worker = await workerFor(echoTool(tool), { instanceId, resumeMs: 10_000 });
    const calling = call(tool);
    const start = await worker.next("start");
    worker.report(start, { case: "output", value: { blob: 0, offset: 0n, data: Buffer.from("begun") } });
    await worker.next("receipt");
    return { worker, start, calling };
  };

  test("by a result", async () => {
    const { worker, start, calling } = await reported("ci_lies", newInstance());
    worker.report(start, { case: "result", value: { outcome: { case: "notEntered", value: "it was not" } } });
    expect(await calling).toMatchObject({
      value: { reason: ToolErrorReason.FAILED, error: expect.stringContaining("had not entered") },
    });
    expect(worker.untaken("start")).toBe(0);
  });

  test("by its next hello", async () => {
    const instanceId = newInstance();
    const { calling } = await reported("ci_forgets", instanceId);
    const worker = await workerFor(echoTool("ci_forgets"), { instanceId, connection: 2n });
    expect(await calling).toMatchObject({
      value: { reason: ToolErrorReason.EXECUTOR_LOST, effects: ToolEffects.UNKNOWN },
    });
    expect(worker.untaken("start")).toBe(0);
  });
});

describe("a plan of a worker", () => {
  const plans = { plans: true, permissions: [] };

  test("adds what it asks, and another one at the start is asked again", async () => {
    const worker = await workerFor(echoTool("ci_asks", plans));
    const sessionId = await agent().newSession();
    let version = "one";
    const planned = (): Planned => ({
      asks: [{ permission: "ci_asks", patterns: [version] }],
      detail: Buffer.from(version),
    });
    void answerPlans(worker, planned);
    const calling = call("ci_asks", { sessionId });
    const open = async () => (await person().listPermissions({ sessionId })).permissions.length;
    await expect.poll(open).toBe(1);
    version = "two";
    expect(await approve(sessionId)).toContain("one");
    expect(await approve(sessionId)).toContain("two");
    const start = await worker.next("start");
    expect(Buffer.from(start.detail).toString()).toBe("two");
    worker.complete(start);
    expect((await calling)?.case).toBe("completed");
    expect(worker.untaken("start")).toBe(0);
  });

  test("with a problem ends the call before anyone is asked, and a body that finds a change after it", async () => {
    const worker = await workerFor(echoTool("ci_changed", plans));
    let planned: Planned = { problem: "there is no such place; name another one" };
    void answerPlans(worker, () => planned);
    expect(await call("ci_changed")).toMatchObject({
      value: { reason: ToolErrorReason.FAILED, effects: ToolEffects.NONE, error: planned.problem },
    });
    planned = {};
    const calling = call("ci_changed");
    const changed = { case: "failed", value: { kind: WorkerFailure.CHANGED, message: "it is gone" } } as const;
    worker.report(await worker.next("start"), { case: "result", value: { outcome: changed } });
    expect(await calling).toMatchObject({ value: { error: expect.stringContaining("it is gone") } });
  });

  test("that does not come leaves the call to wait, and never starts it", async () => {
    const worker = await workerFor(echoTool("ci_silent", plans));
    expect(await call("ci_silent", { queueMs: 1_000 })).toMatchObject({
      value: { reason: ToolErrorReason.UNAVAILABLE, effects: ToolEffects.NONE },
    });
    expect(worker.untaken("plan")).toBeGreaterThan(0);
    expect(worker.untaken("start")).toBe(0);
  });
});

test("a definition keeps its ID over restarts of service and worker, and over what only limits its work", async () => {
  const ids = async (fields: Parameters<typeof echoTool>[1] = {}) => {
    const { welcome } = await workerFor(echoTool("ci_same", fields));
    return welcome.tools.map(({ definitionId }) => definitionId);
  };
  const before = await ids();
  expect(await ids({ queueMs: 5, maxConcurrent: 3 })).toEqual(before);
  await service.stop();
  await service.start();
  expect(await ids()).toEqual(before);
  expect(await ids({ description: "Another." })).not.toEqual(before);
});
