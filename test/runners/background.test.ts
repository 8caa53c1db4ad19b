import type { JsonObject } from "@bufbuild/protobuf";
import { describe, expect, onTestFinished, test } from "vitest";
import type { SessionEvent } from "../../gen/opencode/tool/v1/event_pb.ts";
import { PermissionReply, ToolErrorReason, type ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { connect } from "../e2e/clients.ts";
import { read } from "../e2e/reading.ts";
import { unconfined, useService } from "../e2e/service.ts";
import { connectRunner, type RunnerOptions } from "./runner-program.ts";

const settings = '[limits]\nrunner_resume_ms = 10000\n[permission.task]\n"explore" = "allow"\n"plan" = "ask"\n';
const service = useService({ settings: `${unconfined}${settings}` });

async function runnerFor(options: RunnerOptions = {}) {
  const runner = await connectRunner(service, options);
  onTestFinished(runner.kill);
  return runner;
}

const work = { description: "Look | around", prompt: "Find the tests.", agent: "explore" };

/** Opens a session, whose calls have ids in order. */
async function openSession() {
  const { tools, newSession } = connect(service, "caller");
  const sessionId = await newSession();
  let count = 0;
  return {
    sessionId,
    tools,
    async use(tool: string, input: JsonObject): Promise<ToolPart> {
      count += 1;
      const { part } = await tools.callTool({ sessionId, callId: `c${count}`, tool, waitMs: 60_000, input });
      if (!part) throw new Error("there is no part");
      return part;
    },
  };
}

const outputOf = ({ state }: ToolPart) => (state.case === "completed" ? state.value.output : "");
const errorOf = ({ state }: ToolPart) => (state.case === "error" ? state.value.error : "");

// First, since no stream of another test is open yet: an abandoned one delays a stop.
test("a service that is stopped does not wait for its tasks: each goes on when its runner returns", async () => {
  const { sessionId, use } = await openSession();
  const runner = await runnerFor();
  await use("background_task", work);
  const { run } = await runner.next("start");
  expect(await service.stop()).toBe(0);
  await service.start();
  const { tools } = connect(service, "caller");
  const log = read(tools.watchSession({ sessionId }));
  const again = await runnerFor({ instanceId: runner.instanceId, held: [run] });
  again.send({ case: "progress", value: { run, title: "still at work", text: "I look." } });
  await log.find(({ event }) => event.case === "progress" && event.value.title === "still at work");
  again.send({ case: "done", value: { run, text: "There are tests." } });
  expect(await log.until("backgroundEnded")).toMatchObject({ callId: "c1.1", reason: 0 });
  expect(await again.next("ended")).toMatchObject({ run });
  const { part } = await tools.getToolPart({ sessionId, callId: "c1.1" });
  expect(part && outputOf(part)).toContain("There are tests.");
});

describe("background_task", () => {
  test("returns at once; its task is a call whose output can be read, and whose end is an event", async () => {
    const { sessionId, tools, use } = await openSession();
    const log = read(tools.watchSession({ sessionId }));
    const runner = await runnerFor();
    const launched = await use("background_task", work);
    expect(outputOf(launched)).toMatch(
      /^Background task launched\.\n\nTask ID: c1\.1\nSession ID: (ses_\w+)\nDescription: Look \| around\nAgent: explore\nStatus: /,
    );
    const { run, childSession } = await runner.next("start");
    runner.send({ case: "progress", value: { run, title: "reading", text: "I look." } });
    await log.find(({ event }) => event.case === "progress" && event.value.title === "reading");
    const now = await use("background_output", { task_id: "c1.1" });
    expect(outputOf(now)).toContain(
      "| Field | Value |\n| --- | --- |\n| Task ID | c1.1 |\n| Description | Look \\| around |\n| Agent | explore |\n| Status | running |\n| Duration | ",
    );
    expect(outputOf(now)).toMatch(
      new RegExp(`\\| Session ID \\| ${childSession} \\|\n\nPrompt:\nFind the tests\\.\n\nLast message:\nI look\\.$`),
    );
    const late = await use("background_output", { task_id: "c1.1", block: true, timeout: 1 });
    expect(outputOf(late)).toMatch(/^Timeout exceeded \(1ms\)\. Task still running\.\n\n\| Field/);

    const waiting = use("background_output", { task_id: "c1.1", block: true });
    runner.send({ case: "done", value: { run, text: "There are tests." } });
    expect(outputOf(await waiting)).toMatch(
      /^Task Result\n\nTask ID: c1\.1\n[\s\S]*\nStatus: completed\n[\s\S]*\n---\n\ntask_id: ses_[\s\S]*There are tests\./,
    );
    const { seq, event } = await log.find(({ event }) => event.case === "backgroundEnded");
    expect(event.value).toMatchObject({ callId: "c1.1", tool: "task", childSessionId: childSession, reason: 0 });
    const before = log.seen.find((each) => each.seq === seq - 1n);
    expect(before?.event).toMatchObject({ case: "part", value: { callId: "c1.1", state: { case: "completed" } } });
    const { part } = await tools.getToolPart({ sessionId, callId: "c1.1" });
    expect(part).toMatchObject({ background: true, childSessionId: childSession, metadata: { parentCallId: "c1" } });
  });

  test("without a runner it fails at once, and starts no call", async () => {
    const { sessionId, tools, use } = await openSession();
    expect(errorOf(await use("background_task", work))).toMatch(/^No agent runner is connected/);
    expect((await tools.listToolParts({ sessionId })).parts).toHaveLength(1);
  });

  test("its task asks; a rejected one has ended, and its end is an event", async () => {
    const { sessionId, tools, use } = await openSession();
    const log = read(tools.watchSession({ sessionId }));
    await runnerFor({ agents: ["plan"] });
    await use("background_task", { ...work, agent: "plan" });
    const { id: permissionId } = await log.until("permissionAsked");
    expect(outputOf(await use("background_output", { task_id: "c1.1" }))).toContain("| Status | waits for approval |");
    const person = connect(service, "approver");
    await person.permissions.respondToPermission({ sessionId, permissionId, reply: PermissionReply.REJECT });
    const ended = await log.until("backgroundEnded");
    expect(ended).toMatchObject({ callId: "c1.1", childSessionId: "", reason: ToolErrorReason.REJECTED });
    expect(outputOf(await use("background_output", { task_id: "c1.1" }))).toMatch(/^Task Result[\s\S]*Status: error/);
  });
});

describe("background_cancel", () => {
  test("cancels one task, which reaches the runner; one that has ended cannot be cancelled", async () => {
    const { use } = await openSession();
    const runner = await runnerFor();
    await use("background_task", work);
    const { run } = await runner.next("start");
    expect(outputOf(await use("background_cancel", { taskId: "c1.1" }))).toBe("Cancelled 1:\nc1.1: error");
    expect(await runner.next("cancel")).toMatchObject({ run });
    expect(errorOf(await use("background_cancel", { task_id: "c1.1" }))).toMatch(
      /^Task c1\.1 has ended already \(error\)/,
    );
    expect(errorOf(await use("background_cancel", { taskId: "c9.1" }))).toMatch(/^Task not found: c9\.1\./);
    expect(errorOf(await use("background_output", { task_id: "c1" }))).toMatch(/^Task not found: c1\./);
    expect(errorOf(await use("background_cancel", {}))).toContain("send either taskId, or all: true");
  });

  test("all cancels every task of the session, and none of another one", async () => {
    const [{ use }, other] = [await openSession(), await openSession()];
    const runner = await runnerFor();
    await other.use("background_task", work);
    const { run: kept } = await runner.next("start");
    for (const prompt of ["one", "two"]) await use("background_task", { ...work, prompt });
    const started = [(await runner.next("start")).run, (await runner.next("start")).run];
    expect(outputOf(await use("background_cancel", { all: true }))).toMatch(/^Cancelled 2:\n/);
    const cancelled = [(await runner.next("cancel")).run, (await runner.next("cancel")).run];
    expect(cancelled.toSorted()).toEqual(started.toSorted());
    runner.send({ case: "done", value: { run: kept, text: "kept" } });
    expect(outputOf(await other.use("background_output", { task_id: "c1.1", block: true }))).toContain("kept");
    expect(outputOf(await use("background_cancel", { all: true }))).toBe(
      "No background task of this session runs or waits.",
    );
  });
});

describe("after kill -9 and a restart", () => {
  test("a task that waited starts when it is approved; one that ran goes on with its runner, or is lost without it", async () => {
    const { sessionId, use } = await openSession();
    const runner = await runnerFor({ agents: ["explore", "plan"] });
    await use("background_task", { ...work, agent: "plan" });
    const pending = read(connect(service, "caller").tools.watchSession({ sessionId, snapshot: true }));
    const { id: permissionId } = await pending.until("permissionAsked");
    await use("background_task", work);
    const { run } = await runner.next("start");
    await use("background_task", work);
    const { run: lostRun, childSession } = await runner.next("start");
    await service.kill();
    await service.start();

    const [caller, person] = [connect(service, "caller"), connect(service, "approver")];
    const log = read(caller.tools.watchSession({ sessionId }));
    // One task may end while the end of another is awaited.
    const endOf = async (callId: string) => {
      const isIts = ({ event }: SessionEvent) => event.case === "backgroundEnded" && event.value.callId === callId;
      return (log.seen.find(isIts) ?? (await log.find(isIts))).event.value;
    };
    const partOf = async (callId: string) => (await caller.tools.getToolPart({ sessionId, callId })).part as ToolPart;
    const held = [run, "run_unknown"];
    const again = await runnerFor({ agents: ["explore", "plan"], instanceId: runner.instanceId, held });
    expect(await again.next("cancel")).toMatchObject({ run: "run_unknown" });
    // Sent twice, as by a runner that has not received the confirmation.
    for (const text of ["went on", "again"]) again.send({ case: "done", value: { run, text } });
    expect(await endOf("c2.1")).toMatchObject({ reason: 0 });
    expect(await again.next("ended")).toMatchObject({ run });
    expect(outputOf(await partOf("c2.1"))).toContain("\nwent on\n");
    const isEnd = ({ event }: SessionEvent) =>
      event.case === "part" && event.value.callId === "c2.1" && event.value.state.case !== "running";
    expect(log.seen.filter(isEnd).map(({ event }) => event.case === "part" && event.value.state.case)).toEqual([
      "pending",
      "completed",
    ]);

    expect(await endOf("c3.1")).toMatchObject({ childSessionId: childSession, reason: ToolErrorReason.EXECUTOR_LOST });
    expect(errorOf(await partOf("c3.1"))).toMatch(
      new RegExp(`^The executor stopped responding[\\s\\S]*call task with session_id "${childSession}"`),
    );
    const late = await runnerFor({ instanceId: "late-runner", held: [lostRun] });
    expect(await late.next("cancel")).toMatchObject({ run: lostRun });
    late.kill();

    await person.permissions.respondToPermission({ sessionId, permissionId, reply: PermissionReply.ONCE });
    expect(await again.serve(() => "planned")).toMatchObject({ agent: "plan", parentCall: "c1.1" });
    expect(await endOf("c1.1")).toMatchObject({ reason: 0 });

    const resumed = caller.tools.callTool({
      ...{ sessionId, callId: "c9", tool: "task", waitMs: 60_000 },
      input: { ...work, session_id: childSession },
    });
    expect(await again.serve(() => "went on")).toMatchObject({ childSession, resume: true });
    expect(outputOf((await resumed).part as ToolPart)).toContain("went on");
  });

  test("a task is cancelled while its runner is away, and the runner is asked to stop when it returns", async () => {
    const { sessionId, use } = await openSession();
    const runner = await runnerFor();
    await use("background_task", work);
    const { run } = await runner.next("start");
    await service.kill();
    await service.start();
    const { tools } = connect(service, "caller");
    const { part } = await tools.cancelTool({ sessionId, callId: "c1.1", message: "Enough." });
    expect(part && errorOf(part)).toMatch(/^Enough\./);
    const again = await runnerFor({ instanceId: runner.instanceId, held: [run] });
    expect(await again.next("cancel")).toMatchObject({ run });
  });

  test("a runner of another principal cannot take over a run", async () => {
    const { sessionId, use } = await openSession();
    const runner = await runnerFor();
    await use("background_task", work);
    const { run } = await runner.next("start");
    await service.kill();
    await service.start();
    const stranger = await runnerFor({ token: "stranger-token-for-tests", held: [run] });
    stranger.send({ case: "done", value: { run, text: "forged" } });
    expect(await stranger.next("cancel")).toMatchObject({ run });
    const again = await runnerFor({ instanceId: runner.instanceId, held: [run] });
    again.send({ case: "done", value: { run, text: "true" } });
    await again.next("ended");
    const { part } = await connect(service, "caller").tools.getToolPart({ sessionId, callId: "c1.1" });
    expect(part && outputOf(part)).toContain("\ntrue\n");
  });
});
