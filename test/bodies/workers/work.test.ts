import { describe, expect, onTestFinished, test } from "vitest";
import { PermissionReply, ToolEffects, ToolErrorReason, ToolExecutor } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { ToolRegistration, WorkerFailure } from "../../../gen/opencode/tool/v1/worker_pb.ts";
import { WorkerService } from "../../../gen/opencode/tool/v1/worker_service_pb.ts";
import { clientOf, connect, refusal } from "../../e2e/clients.ts";
import { useService } from "../../e2e/service.ts";
import { connectWorker, echoTool, newInstance, openWorker, type RawHello } from "./raw-worker.ts";

const settings = `
[limits]
runner_beat_ms = 2000
[permission]
"ci_*" = "allow"
[permission.ci_ask]
"*" = "ask"
[permission.rollout]
"*" = "ask"
[[token]]
id = "ci-worker"
roles = ["worker"]
tools = ["ci_*", "bash"]
permissions = ["rollout", "read", "*"]
calls = ["echo"]
value = "ci-worker-token-for-tests"
[[token]]
id = "other-worker"
roles = ["worker"]
tools = ["ci_*"]
value = "other-worker-token-for-tests"
`;
const service = useService({ settings });
const agent = () => connect(service, "caller");
const person = () => connect(service, "approver");

/** Connects a worker whose line is cut after the test. */
async function workerFor(hello: RawHello = {}) {
  const worker = await connectWorker(service, hello);
  onTestFinished(worker.cut);
  return worker;
}

/** Makes a call, which may end later. */
async function call(
  tool: string,
  text = "hello",
  fields: { waitMs?: number; sessionId?: string; callId?: string } = {},
) {
  const { part } = await agent().tools.callTool({ tool, input: { text }, waitMs: 60_000, ...fields });
  if (!part) throw new Error("there is no part");
  return part;
}

/** Approves the open request of a session. */
async function approve(
  sessionId: string,
  permission: string,
  reply: PermissionReply = PermissionReply.ONCE,
): Promise<void> {
  const find = async () => (await person().permissions.listPermissions({ sessionId })).permissions;
  await expect.poll(async () => (await find()).map((each) => each.permission)).toContain(permission);
  const request = (await find()).find((each) => each.permission === permission);
  await person().permissions.respondToPermission({ sessionId, permissionId: request?.id ?? "", reply });
}

describe("a call", () => {
  test("runs in the worker: title, metadata, output and result are those of its body", async () => {
    const tool = echoTool("ci_echo", { title: "Echo {text}", metadataKeys: ["shared"] });
    const worker = await workerFor({ tools: [tool], buildId: "abc123" });
    const sessionId = await agent().newSession();
    const calling = agent().tools.callTool({
      ...{ sessionId, tool: "ci_echo", input: { text: "hello" }, waitMs: 60_000 },
      metadata: { shared: "yes", secret: "no" },
    });
    const start = await worker.next("start");
    expect(start).toMatchObject({
      title: "Echo hello",
      call: {
        tool: "ci_echo",
        input: { text: "hello" },
        metadata: { shared: "yes" },
        directory: "",
        workspace: "default",
      },
    });
    expect(start.call?.metadata).toEqual({ shared: "yes" });
    expect(start.assignment.length).toBeGreaterThan(40);
    worker.report(start, { case: "progress", value: { metadata: { step: 1 } } });
    worker.report(start, { case: "output", value: { blob: 0, offset: 0n, data: Buffer.from("line 1\n") } });
    await expect.poll(async () => (await worker.next("receipt")).stored[0]).toBe(7n);
    worker.report(start, {
      case: "result",
      value: { outcome: { case: "completed", value: { title: "Echoed", note: "see the log" } } },
    });
    const { part } = await calling;
    expect(part).toMatchObject({ executor: ToolExecutor.WORKER, worker: "ci", buildId: "abc123" });
    expect(part?.state).toMatchObject({
      case: "completed",
      value: {
        title: "Echoed",
        output: expect.stringContaining("line 1"),
        metadata: expect.objectContaining({ step: 1 }),
      },
    });
    expect(await worker.next("ended")).toMatchObject({ assignment: start.assignment, recorded: true });
  });

  test("asks what its template says; a refusal starts nothing", async () => {
    const worker = await workerFor({ tools: [echoTool("ci_ask")] });
    const sessionId = await agent().newSession();
    const calling = call("ci_ask", "prod/api", { sessionId });
    await approve(sessionId, "ci_ask", PermissionReply.REJECT);
    expect((await calling).state).toMatchObject({ case: "error", value: { reason: ToolErrorReason.REJECTED } });
    expect(worker.untaken("start")).toBe(0);
  });

  test("that is cancelled stops its body, whose result no longer counts", async () => {
    const worker = await workerFor();
    const sessionId = await agent().newSession();
    const calling = call("ci_echo", "slow", { sessionId, callId: "slow" });
    const start = await worker.next("start");
    const cancelling = agent().tools.cancelTool({ sessionId, callId: "slow" });
    expect(await worker.next("cancel")).toMatchObject({
      assignment: start.assignment,
      reason: ToolErrorReason.CANCELLED,
    });
    worker.report(start, {
      case: "result",
      value: { outcome: { case: "failed", value: { kind: WorkerFailure.STOPPED, message: "stopped" } } },
    });
    await cancelling;
    expect((await calling).state).toMatchObject({ value: { reason: ToolErrorReason.CANCELLED } });
    expect(await worker.next("ended")).toMatchObject({ recorded: false });
  });

  test("whose body asks waits for a person, and keeps its state for the fleet", async () => {
    const worker = await workerFor();
    const sessionId = await agent().newSession();
    const calling = call("ci_echo", "deploy", { sessionId });
    const start = await worker.next("start");
    const ask = { permission: "rollout", patterns: ["prod"] };
    worker.report(start, { case: "request", value: { number: 1, request: { case: "ask", value: ask } } });
    worker.report(start, { case: "request", value: { number: 1, request: { case: "ask", value: ask } } });
    await approve(sessionId, "rollout");
    expect(await worker.next("answer")).toMatchObject({ number: 1, answer: { case: undefined } });
    const state = { name: "last", value: { kind: { case: "stringValue", value: "prod" } } } as const;
    worker.report(start, { case: "request", value: { number: 2, request: { case: "setState", value: state } } });
    expect(await worker.next("answer")).toMatchObject({ number: 2 });
    worker.report(start, { case: "request", value: { number: 3, request: { case: "getState", value: "last" } } });
    expect((await worker.next("answer")).answer).toMatchObject({ value: { kind: { value: "prod" } } });
    worker.complete(start);
    expect((await calling).state.case).toBe("completed");
    expect((await person().permissions.listPermissions({ sessionId })).permissions).toEqual([]);
  });

  test("whose body makes calls gets their results, of the tools of its token alone", async () => {
    const worker = await workerFor();
    const calling = call("ci_echo", "parent");
    const start = await worker.next("start");
    const calls = (tool: string) => ({
      case: "calls" as const,
      value: { calls: [{ tool, input: { text: "child" } }] },
    });
    worker.report(start, { case: "request", value: { number: 1, request: calls("echo") } });
    expect(await worker.next("answer")).toMatchObject({
      answer: { value: { calls: [{ completed: true, text: "child" }] } },
    });
    worker.report(start, { case: "request", value: { number: 2, request: calls("read") } });
    expect(await worker.next("answer")).toMatchObject({
      answer: { case: "problem", value: expect.stringContaining('may call only echo, and not "read"') },
    });
    worker.complete(start);
    expect((await calling).state.case).toBe("completed");
  });

  test("goes on over the next connection of its worker, and takes what is sent again once", async () => {
    const instanceId = newInstance();
    const before = await workerFor({ instanceId });
    const calling = call("ci_echo", "resumed");
    const start = await before.next("start");
    before.report(start, { case: "output", value: { blob: 0, offset: 0n, data: Buffer.from("one ") } });
    await expect.poll(async () => (await before.next("receipt")).stored[0]).toBe(4n);
    before.cut();
    const worker = await workerFor({ instanceId, connection: 2n, held: [start.assignment] });
    expect((await worker.next("receipt")).stored[0]).toBe(4n);
    worker.report(start, { case: "output", value: { blob: 0, offset: 0n, data: Buffer.from("one two ") } });
    worker.report(start, {
      case: "result",
      value: { outcome: { case: "completed", value: {} } },
    });
    expect((await calling).state).toMatchObject({ case: "completed", value: { output: "one two " } });
    expect(worker.untaken("start")).toBe(0);
  });

  test("whose worker connects again without it is started again, for its body was never entered", async () => {
    const instanceId = newInstance();
    const before = await workerFor({ instanceId });
    const calling = call("ci_echo", "again");
    const first = await before.next("start");
    const worker = await workerFor({ instanceId, connection: 2n });
    const second = await worker.next("start");
    expect(second.assignment).not.toBe(first.assignment);
    worker.complete(second, "once");
    expect((await calling).state).toMatchObject({ case: "completed", value: { output: "once" } });
  });

  test("whose worker does not return ends EXECUTOR_LOST", async () => {
    const worker = await workerFor({ resumeMs: 100 });
    const calling = call("ci_echo", "lost");
    await worker.next("start");
    worker.cut();
    expect((await calling).state).toMatchObject({
      value: { reason: ToolErrorReason.EXECUTOR_LOST, effects: ToolEffects.UNKNOWN },
    });
  });

  test("for which no worker has capacity waits for one, and ends UNAVAILABLE when its time is over", async () => {
    const worker = await workerFor({ tools: [echoTool("ci_one")], capacity: 1 });
    const first = call("ci_one", "first");
    const start = await worker.next("start");
    const second = call("ci_one", "second");
    const { part } = await agent().tools.callTool({
      ...{ tool: "ci_one", input: { text: "third" }, waitMs: 60_000, queueMs: 0 },
    });
    expect(part?.state).toMatchObject({ value: { reason: ToolErrorReason.UNAVAILABLE, effects: ToolEffects.NONE } });
    worker.complete(start);
    await first;
    worker.complete(await worker.next("start"), "second");
    expect((await second).state).toMatchObject({ value: { output: "second" } });
  });
});

describe("what breaks the rules is refused by name, and nothing is lost", () => {
  test.each<[string, RawHello, string]>([
    ["another protocol", { protocol: 2 }, "WORKER_PROTOCOL"],
    ["no instance", { instanceId: "" }, "INVALID_MESSAGE"],
    ["no fleet", { worker: "" }, "INVALID_MESSAGE"],
    ["no tools", { tools: [] }, "INVALID_MESSAGE"],
    ["a workspace that its token may not serve", { workspaces: ["elsewhere"] }, "UNKNOWN_WORKSPACE"],
    ["another store", { expectedStoreId: "str_other" }, "STORE_CHANGED"],
    [
      "10 MB",
      { tools: [echoTool("ci_big", { outputSchema: { description: "x".repeat(10_000_000) } })] },
      "REQUEST_TOO_LARGE",
    ],
    [
      "600 KiB",
      { tools: [echoTool("ci_big", { outputSchema: { description: "x".repeat(600_000) } })] },
      "REQUEST_TOO_LARGE",
    ],
    ["a token of another role", { token: "caller-token-for-tests" }, "ROLE_MISSING"],
  ])("a hello with %s", async (_name, hello, reason) => {
    expect(await refusal(openWorker(service, hello).ended.then((error) => Promise.reject(error)))).toMatchObject({
      reason,
    });
  });

  test("a first message that is not hello, and a second hello, end the stream", async () => {
    const worker = await workerFor();
    worker.send({ case: "hello", value: { protocol: 1 } });
    expect(await refusal(worker.ended.then((error) => Promise.reject(error)))).toMatchObject({
      reason: "INVALID_MESSAGE",
    });
  });

  test("a bad tool beside a good one is refused alone, by a reason", async () => {
    const good = await workerFor();
    const { NAME_TAKEN, NOT_YOURS, INVALID, REGISTERED } = ToolRegistration;
    const bad: [NonNullable<RawHello["tools"]>[number], ToolRegistration, string][] = [
      [echoTool("ci_good"), REGISTERED, ""],
      [echoTool("bash"), NAME_TAKEN, "belongs to the service"],
      [echoTool("deploy"), NOT_YOURS, "may not bring"],
      [
        echoTool("ci_read", { permissions: [{ permission: "skill", patterns: ["x"] }] }),
        NOT_YOURS,
        "belongs to the service",
      ],
      [echoTool("ci_doom", { permissions: [{ permission: "doom_loop", patterns: ["x"] }] }), NOT_YOURS, "belongs to"],
      [
        echoTool("ci_foreign", { permissions: [{ permission: "claude:Bash", patterns: ["x"] }] }),
        NOT_YOURS,
        "belongs to",
      ],
      [echoTool("ci_covers", { coversBody: true }), INVALID, "only for tool processes"],
      [
        echoTool("ci_remote", { inputSchema: { type: "object", $ref: "https://example.com/x" } }),
        INVALID,
        "not a place",
      ],
      [echoTool("ci_twice", { permissions: [{ permission: "ci_twice", patterns: ["{a}{b}"] }] }), INVALID, "two holes"],
    ];
    const worker = await workerFor({ tools: bad.map(([tool]) => tool) });
    expect(worker.welcome.tools.map(({ registration, message }) => ({ registration, message }))).toEqual(
      bad.map(([, registration, message]) => ({ registration, message: expect.stringContaining(message) })),
    );
    const other = await workerFor({ token: "other-worker-token-for-tests" });
    expect(other.welcome.tools).toMatchObject([
      { registration: NAME_TAKEN, message: expect.stringContaining('the token "ci-worker"') },
    ]);
    const calling = call("ci_echo");
    good.complete(await good.next("start"));
    expect((await calling).state.case).toBe("completed");
  });

  test("a report of an assignment of another worker has no effect and is answered with ended", async () => {
    const [worker, stranger] = [
      await workerFor(),
      await workerFor({ token: "other-worker-token-for-tests", tools: [echoTool("ci_x")] }),
    ];
    const calling = call("ci_echo", "mine");
    const start = await worker.next("start");
    stranger.complete(start, "stolen");
    expect(await stranger.next("ended")).toMatchObject({ assignment: start.assignment, recorded: false });
    const again = await workerFor({
      token: "other-worker-token-for-tests",
      tools: [echoTool("ci_x")],
      held: [start.assignment],
    });
    expect(await again.next("ended")).toMatchObject({ assignment: start.assignment, recorded: false });
    worker.complete(start, "mine");
    expect((await calling).state).toMatchObject({ value: { output: "mine" } });
  });

  test("a gap in the output ends its call FAILED, and a report after the result changes nothing", async () => {
    const worker = await workerFor();
    const broken = call("ci_echo", "gap");
    const start = await worker.next("start");
    worker.report(start, { case: "output", value: { blob: 0, offset: 5n, data: Buffer.from("x") } });
    expect((await broken).state).toMatchObject({
      value: { reason: ToolErrorReason.FAILED, error: expect.stringContaining("lost output") },
    });
    const calling = call("ci_echo", "late");
    const next = await worker.next("start");
    worker.complete(next, "result");
    worker.report(next, { case: "output", value: { blob: 0, offset: 0n, data: Buffer.from("late") } });
    worker.complete(next, "another");
    expect((await calling).state).toMatchObject({ value: { output: "result" } });
  });

  test("a body that asks what belongs to the service, or to no one, ends its call FAILED without an ask", async () => {
    const worker = await workerFor();
    for (const permission of ["skill", "question", "external_directory"]) {
      const calling = call("ci_echo", permission);
      const ask = { permission, patterns: ["/etc/passwd"] };
      worker.report(await worker.next("start"), {
        case: "request",
        value: { number: 1, request: { case: "ask", value: ask } },
      });
      expect((await calling).state).toMatchObject({
        value: { reason: ToolErrorReason.FAILED, error: expect.stringContaining("belongs to the service") },
      });
    }
  });

  test("an older connection of a process ends when a newer one comes, and cannot come after it", async () => {
    const instanceId = newInstance();
    const [first] = [await workerFor({ instanceId, connection: 2n })];
    expect(
      await refusal(openWorker(service, { instanceId, connection: 1n }).ended.then((error) => Promise.reject(error))),
    ).toMatchObject({ reason: "WORKER_SUPERSEDED" });
    await workerFor({ instanceId, connection: 3n });
    expect(await refusal(first.ended.then((error) => Promise.reject(error)))).toMatchObject({
      reason: "WORKER_SUPERSEDED",
    });
  });

  test("of two processes with one instance ID the later wins: both learn it, and what the earlier ran is lost, not run again", async () => {
    const instanceId = newInstance();
    const first = await workerFor({ instanceId });
    const calling = call("ci_echo", "twin");
    await first.next("start");
    const second = await workerFor({ instanceId });
    expect(await first.ended).toMatchObject({ rawMessage: expect.stringContaining("its own instance_id") });
    expect(second.welcome.notice).toContain("another process has the instance_id");
    expect((await calling).state).toMatchObject({ value: { reason: ToolErrorReason.EXECUTOR_LOST } });
    expect(second.untaken("start")).toBe(0);
  });

  test("a worker can neither call nor approve nor read", async () => {
    const worker = connectAsWorker();
    for (const request of worker) expect(await refusal(request())).toMatchObject({ reason: "ROLE_MISSING" });
  });
});

function connectAsWorker() {
  const { tools, permissions, sessions } = connect(service, "ci-worker" as never);
  return [
    () => tools.callTool({ tool: "echo" }),
    () => permissions.respondToPermission({ sessionId: "ses_x", permissionId: "per_x", reply: PermissionReply.ONCE }),
    () => permissions.listPermissions({}),
    () => sessions.createSession({}),
  ];
}

test("ListWorkers shows overseers the processes", async () => {
  const worker = await workerFor({ buildId: "b1", sdk: "raw" });
  const { workers } = await clientOf(WorkerService, service.url, "watcher-token-for-tests").listWorkers({});
  expect(workers.find(({ instanceId }) => instanceId === worker.instanceId)).toMatchObject({
    ...{ worker: "ci", buildId: "b1", sdk: "raw", principal: "ci-worker", capacity: 4, running: 0, connected: true },
    tools: [{ name: "ci_echo", registration: ToolRegistration.REGISTERED }],
  });
});
