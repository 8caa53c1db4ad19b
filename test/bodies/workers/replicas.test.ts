import { expect, onTestFinished, test } from "vitest";
import type { SessionEvent } from "../../../gen/opencode/tool/v1/event_pb.ts";
import { PermissionReply, ToolEffects, ToolErrorReason } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { connect } from "../../e2e/clients.ts";
import { nameOf, outputOf, read } from "../../e2e/reading.ts";
import { useReplicas } from "../../e2e/replicas.ts";
import type { Service } from "../../e2e/service.ts";
import { connectWorker, echoTool, newInstance, openWorker, type RawHello } from "./raw-worker.ts";

/** Each test has its own tool, so that a process that may return takes no call of the next one. */
const replicas = useReplicas(`
[permission]
"ci_*" = "allow"
ci_asks = "ask"
ci_planned = "ask"
[[token]]
id = "ci-worker"
roles = ["worker"]
tools = ["ci_*"]
idempotent = true
value = "ci-worker-token-for-tests"
`);

type Worker = Awaited<ReturnType<typeof connectWorker>>;

/** Connects a worker with one tool, which every replica then knows. */
async function workerAt(replica: Service, tool: string, hello: RawHello = {}): Promise<Worker> {
  const worker = await connectWorker(replica, { tools: [echoTool(tool)], ...hello });
  onTestFinished(worker.cut);
  for (const each of replicas().all) if (each.pid !== undefined) await untilListed(each, tool);
  return worker;
}

async function untilListed(replica: Service, tool: string): Promise<void> {
  const names = async () => (await connect(replica, "caller").tools.listTools({})).tools.map(({ name }) => name);
  await expect.poll(names).toContain(tool);
}

/** Makes a call at a replica and reads its events there. */
async function execute(replica: Service, tool: string, fields: { queueMs?: number; definitionId?: string } = {}) {
  const agent = connect(replica, "caller");
  const call = { sessionId: await agent.newSession(), callId: "c1", tool, input: { text: "hello" }, ...fields };
  return { call, stream: read(agent.tools.executeTool(call)) };
}

function write(worker: Worker, assignment: string, offset: number, text: string): void {
  worker.report(
    { assignment },
    { case: "output", value: { blob: 0, offset: BigInt(offset), data: Buffer.from(text) } },
  );
}

/** Ends a body with what it wrote. */
const finish = (worker: Worker, assignment: string) =>
  worker.report({ assignment }, { case: "result", value: { outcome: { case: "completed", value: {} } } });

const isEnd = (event: SessionEvent) => nameOf(event) === "completed" || nameOf(event) === "error";

test("a call made at one replica runs in a worker at another, with the same events at both", async () => {
  const [a, b] = replicas().all;
  const worker = await workerAt(b, "ci_far");
  const { call, stream } = await execute(a, "ci_far");
  const watcher = read(connect(b, "watcher").tools.watchSession({ sessionId: call.sessionId }));
  const { assignment } = await worker.next("start");
  write(worker, assignment, 0, "one ");
  write(worker, assignment, 4, "two");
  finish(worker, assignment);
  expect((await stream.end()).state).toMatchObject({ case: "completed", value: { output: "one two" } });
  await watcher.find(isEnd);
  expect(watcher.seen).toEqual(stream.seen);
  expect(await worker.next("ended")).toMatchObject({ assignment, recorded: true });
});

test("kill -9 of the replica with the worker: the next one goes on, and a watcher of a third sees all", async () => {
  const [a, b, c] = replicas().all;
  const instanceId = newInstance();
  const before = await workerAt(b, "ci_moved", { instanceId });
  const { call, stream } = await execute(a, "ci_moved");
  const { assignment } = await before.next("start");
  write(before, assignment, 0, "before ");
  await stream.until("output");
  await b.kill();
  const worker = await workerAt(c, "ci_moved", { instanceId, connection: 2n, held: [assignment] });
  // What has no receipt is sent again.
  write(worker, assignment, 0, "before after");
  finish(worker, assignment);
  expect((await stream.end()).state).toMatchObject({ case: "completed", value: { output: "before after" } });
  expect(outputOf(stream.seen)).toBe("before after");
  const watcher = read(connect(c, "watcher").tools.watchSession({ sessionId: call.sessionId }));
  await watcher.find(isEnd);
  expect(watcher.seen).toEqual(stream.seen);
  expect(worker.untaken("start")).toBe(0);
});

test("a frozen replica that wakes has lost the call to the one to which its worker went", async () => {
  const [a, b, c] = replicas().all;
  const instanceId = newInstance();
  const before = await workerAt(b, "ci_frozen", { instanceId });
  const { call, stream } = await execute(a, "ci_frozen");
  const { assignment } = await before.next("start");
  write(before, assignment, 0, "one ");
  await stream.until("output");
  process.kill(b.pid ?? 0, "SIGSTOP");
  onTestFinished(() => void process.kill(b.pid ?? 0, "SIGCONT"));
  // This waits in the socket of the frozen replica.
  write(before, assignment, 4, "lost");
  finish(before, assignment);
  const worker = await connectWorker(c, {
    ...{ instanceId, tools: [echoTool("ci_frozen")], connection: 2n, held: [assignment] },
  });
  onTestFinished(worker.cut);
  write(worker, assignment, 4, "two ");
  await stream.until("output");
  process.kill(b.pid ?? 0, "SIGCONT");
  await untilListed(b, "ci_frozen");
  write(worker, assignment, 8, "three");
  finish(worker, assignment);
  expect((await stream.end()).state).toMatchObject({ case: "completed", value: { output: "one two three" } });
  const watcher = read(connect(b, "watcher").tools.watchSession({ sessionId: call.sessionId }));
  await watcher.find(isEnd);
  expect(outputOf(watcher.seen)).toBe("one two three");
  expect(watcher.seen.filter(isEnd)).toHaveLength(1);
  expect(worker.untaken("start")).toBe(0);
});

test("a killed worker: EXECUTOR_LOST after resume_ms, and no start at any other process", async () => {
  const [a, b, c] = replicas().all;
  const lost = await workerAt(b, "ci_lost", { resumeMs: 500 });
  const { stream } = await execute(a, "ci_lost");
  await lost.next("start");
  const idle = await workerAt(c, "ci_lost");
  lost.cut();
  expect((await stream.end()).state).toMatchObject({
    value: { reason: ToolErrorReason.EXECUTOR_LOST, effects: ToolEffects.UNKNOWN },
  });
  expect(idle.untaken("start")).toBe(0);
});

test("worker and replica killed together: EXECUTOR_LOST too, or a second run if the tool may be repeated", async () => {
  const [a, b, c] = replicas().all;
  const tools = [echoTool("ci_dead"), echoTool("ci_again", { annotations: { idempotent: true } })];
  const lost = await workerAt(b, "ci_again", { tools, resumeMs: 500 });
  const once = await execute(a, "ci_dead");
  await lost.next("start");
  const again = await execute(a, "ci_again");
  await lost.next("start");
  const ended = once.stream.end();
  const idle = await workerAt(c, "ci_again", { tools });
  lost.cut();
  await b.kill();
  const { assignment, call } = await idle.next("start");
  expect(call?.tool).toBe("ci_again");
  idle.complete({ assignment }, "again");
  expect((await again.stream.end()).state).toMatchObject({ case: "completed", value: { output: "again" } });
  expect((await ended).state).toMatchObject({ value: { reason: ToolErrorReason.EXECUTOR_LOST } });
  expect(idle.untaken("start")).toBe(0);
});

test("a start that its worker never got is probed by the next replica, and made again", async () => {
  const [a, b, c] = replicas().all;
  const instanceId = newInstance();
  const before = await workerAt(b, "ci_probed", { instanceId });
  const { stream } = await execute(a, "ci_probed");
  const first = await before.next("start");
  await b.kill();
  const worker = await workerAt(c, "ci_probed", { instanceId, connection: 2n });
  expect(await worker.next("probe")).toBe(first.assignment);
  worker.send({ case: "known", value: { assignment: first.assignment, entered: false } });
  const second = await worker.next("start");
  expect(second.assignment).not.toBe(first.assignment);
  worker.complete(second, "once");
  expect((await stream.end()).state).toMatchObject({ case: "completed", value: { output: "once" } });
});

test("a body that its worker has entered answers a probe, and goes on", async () => {
  const [a, b, c] = replicas().all;
  const instanceId = newInstance();
  const before = await workerAt(b, "ci_entered", { instanceId });
  const { stream } = await execute(a, "ci_entered");
  const { assignment } = await before.next("start");
  await b.kill();
  const worker = await workerAt(c, "ci_entered", { instanceId, connection: 2n });
  expect(await worker.next("probe")).toBe(assignment);
  worker.send({ case: "known", value: { assignment, entered: true } });
  await worker.next("receipt");
  worker.complete({ assignment }, "kept");
  expect((await stream.end()).state).toMatchObject({ case: "completed", value: { output: "kept" } });
  expect(worker.untaken("start")).toBe(0);
});

test("a worker that answers a probe while its call is being adopted keeps its body", async () => {
  const [a, b, c] = replicas().all;
  const instanceId = newInstance();
  const before = await workerAt(b, "ci_twice", { instanceId });
  const { stream } = await execute(a, "ci_twice");
  const { assignment } = await before.next("start");
  await b.kill();
  const worker = openWorker(c, {
    ...{ instanceId, tools: [echoTool("ci_twice")], connection: 2n, held: [assignment] },
  });
  // They are read in the turn in which the adoption begins.
  for (let count = 0; count < 3; count += 1) worker.send({ case: "known", value: { assignment, entered: true } });
  await worker.next("receipt");
  worker.complete({ assignment }, "kept");
  expect((await stream.end()).state).toMatchObject({ case: "completed", value: { output: "kept" } });
  expect(await worker.next("ended")).toMatchObject({ assignment, recorded: true });
});

test("SIGTERM of the replica with a running body: its worker is asked to leave, and the call goes on", async () => {
  const [a, b, c] = replicas().all;
  const instanceId = newInstance();
  const before = await workerAt(b, "ci_drained", { instanceId });
  const { stream } = await execute(a, "ci_drained");
  const { assignment } = await before.next("start");
  write(before, assignment, 0, "one ");
  await stream.until("output");
  const stopped = b.stop();
  expect(await before.next("leave")).toMatchObject({ stop: false });
  const worker = await connectWorker(c, {
    ...{ instanceId, tools: [echoTool("ci_drained")], connection: 2n, held: [assignment] },
  });
  onTestFinished(worker.cut);
  write(worker, assignment, 0, "one two");
  finish(worker, assignment);
  expect((await stream.end()).state).toMatchObject({ case: "completed", value: { output: "one two" } });
  before.cut();
  expect(await stopped).toBe(0);
  expect(worker.untaken("start")).toBe(0);
});

test("while no worker is connected a call asks, is approved, and runs once in the one that comes, anywhere", async () => {
  const [a, b, c] = replicas().all;
  const gone = await workerAt(b, "ci_asks", { resumeMs: 0 });
  gone.cut();
  await gone.ended;
  const { call, stream } = await execute(a, "ci_asks");
  const { id: permissionId } = await stream.until("permissionAsked");
  const answer = { sessionId: call.sessionId, permissionId, reply: PermissionReply.ONCE };
  await connect(b, "approver").permissions.respondToPermission(answer);
  const worker = await workerAt(c, "ci_asks");
  worker.complete(await worker.next("start"), "once");
  expect((await stream.end()).state).toMatchObject({ case: "completed", value: { output: "once" } });
  expect(worker.untaken("start")).toBe(0);
});

test("a call that no worker takes in time ends UNAVAILABLE, at once if it may not wait", async () => {
  const [a, b] = replicas().all;
  const gone = await workerAt(b, "ci_nobody", { resumeMs: 0 });
  gone.cut();
  await gone.ended;
  for (const queueMs of [0, 1_000]) {
    const { stream } = await execute(a, "ci_nobody", { queueMs });
    const { state } = await stream.end();
    expect(state).toMatchObject({ value: { reason: ToolErrorReason.UNAVAILABLE, effects: ToolEffects.NONE } });
    expect(stream.seen.map(nameOf)).not.toContain("running");
  }
});

test("two builds of a fleet at two replicas: each offers what its worker runs, and a call goes where it was planned", async () => {
  const [a, b, c] = replicas().all;
  const build = (description: string, generation: bigint) => ({
    tools: ["ci_builds", "ci_planned"].map((name) => echoTool(name, { description })),
    ...{ generation, buildId: description, resumeMs: 0 },
  });
  const old = await workerAt(a, "ci_builds", build("Old.", 1n));
  const next = await workerAt(b, "ci_builds", build("New.", 2n));
  const offered = async (replica: Service) =>
    (await connect(replica, "caller").tools.listTools({})).tools.find(({ name }) => name === "ci_builds");
  // The third has no worker: it offers the highest generation that was declared.
  for (const [replica, description] of [
    [a, "Old."],
    [b, "New."],
    [c, "New."],
  ] as const)
    await expect.poll(() => offered(replica)).toMatchObject({ description });
  const definitionId = (await offered(a))?.definitionId ?? "";
  const asked = await execute(a, "ci_planned");
  const { id: permissionId } = await asked.stream.until("permissionAsked");

  for (const [replica, worker, fields] of [
    [a, old, {}],
    [c, next, {}],
    [c, old, { definitionId }],
    [b, old, { definitionId }],
  ] as const) {
    const { stream } = await execute(replica, "ci_builds", fields);
    worker.complete(await worker.next("start"));
    const { buildId, state } = await stream.end();
    expect({ buildId, case: state.case }).toEqual({ buildId: worker === old ? "Old." : "New.", case: "completed" });
  }

  old.cut();
  await old.ended;
  await expect.poll(() => offered(a)).toMatchObject({ description: "New." });
  const stale = { reason: ToolErrorReason.STALE_TOOL, effects: ToolEffects.NONE };
  const bound = await execute(b, "ci_builds", { definitionId, queueMs: 500 });
  expect((await bound.stream.end()).state).toMatchObject({ value: stale });
  // What was approved for the old definition is not run by the new one.
  const answer = { sessionId: asked.call.sessionId, permissionId, reply: PermissionReply.ONCE };
  await connect(b, "approver").permissions.respondToPermission(answer);
  const again = await workerAt(c, "ci_builds", build("Old.", 1n));
  const { assignment, call } = await again.next("start");
  expect(call).toMatchObject({ tool: "ci_planned", callId: asked.call.callId });
  again.complete({ assignment }, "as planned");
  expect((await asked.stream.end()).state).toMatchObject({ case: "completed", value: { output: "as planned" } });
  expect(next.untaken("start")).toBe(0);
});
