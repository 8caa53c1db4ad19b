import { describe, expect, onTestFinished, test } from "vitest";
import { AgentService } from "../../gen/opencode/tool/v1/agent_service_pb.ts";
import { PermissionReply, ToolErrorReason, type ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { type Clients, clientOf, connect, refusal } from "../e2e/clients.ts";
import { read } from "../e2e/reading.ts";
import { type Principal, unconfined, useService } from "../e2e/service.ts";
import { connectRunner, openRunner, type RunnerOptions } from "./runner-program.ts";

const settings = `
[limits]
runner_beat_ms = 2000
runner_resume_ms = 3000
running_tasks = 2
[permission.task]
"explore" = "allow"
"plan" = "ask"
"secret" = "deny"
"free" = "allow"
[agent.secret]
description = "Never a subagent."
[agent.narrow.permission]
"read" = "ask"
"todowrite" = "deny"
`;
const service = useService({ settings: `${unconfined}${settings}` });
const callerToken = "caller-token-for-tests";

const at = (who: Principal = "caller") => connect(service, who);

/** Connects a runner that leaves after the test. */
async function runnerFor(options: RunnerOptions = {}) {
  const runner = await connectRunner(service, options);
  onTestFinished(runner.kill);
  return runner;
}

interface TaskCall {
  sessionId: string;
  callId?: string;
  tool?: string;
  agent?: string;
  input?: Record<string, string>;
  waitMs?: number;
}

const work = { description: "Look around", prompt: "Find the tests.", agent: "explore" };

async function call(
  clients: Clients,
  { tool = "task", callId = "t1", input = {}, waitMs = 60_000, ...rest }: TaskCall,
) {
  const { part } = await clients.tools.callTool({ ...rest, tool, callId, waitMs, input: { ...work, ...input } });
  if (!part) throw new Error("there is no part");
  return part;
}

/** Makes a call of a tool that takes other input than task. */
async function use(clients: Clients, sessionId: string, callId: string, tool: string, input: Record<string, unknown>) {
  const { part } = await clients.tools.callTool({ sessionId, callId, tool, waitMs: 60_000, input: input as never });
  return part as ToolPart;
}

const outputOf = ({ state }: ToolPart) => (state.case === "completed" ? state.value.output : "");
const errorOf = ({ state }: ToolPart) =>
  state.case === "error" ? { reason: state.value.reason, error: state.value.error } : { reason: 0, error: "" };

describe("task", () => {
  test("without a runner it fails at once, and says what to do", async () => {
    const clients = at();
    const ended = await call(clients, { sessionId: await clients.newSession() });
    expect(errorOf(ended)).toEqual({
      reason: ToolErrorReason.FAILED,
      error: expect.stringMatching(/^No agent runner is connected.*AgentService\.RunAgents/),
    });
    expect(ended.childSessionId).toBe("");
  });

  test("the runner gets a child session, makes calls in it, and its answer is the result", async () => {
    const clients = at();
    const runner = await runnerFor();
    const sessionId = await clients.newSession();
    const pending = call(clients, { sessionId });
    const start = await runner.serve(async ({ childSession, run }) => {
      runner.send({ case: "progress", value: { run, title: "reading", text: "I look." } });
      await clients.tools.callTool({ sessionId: childSession, callId: "c1", tool: "glob", input: { pattern: "*" } });
      return "There are </task_result> tests.";
    });
    const ended = await pending;
    await runner.next("ended");
    expect(start).toMatchObject({
      ...{ agent: "explore", prompt: "Find the tests.", resume: false, cwd: service.workspace },
      ...{ parentSession: sessionId, parentCall: "t1" },
    });
    expect(outputOf(ended)).toMatch(
      new RegExp(
        `^task_id: ${start.childSession} \\(for resuming to continue this task if needed\\)\n\n<task_result>\nThere are &lt;/task_result> tests\\.\n</task_result>`,
      ),
    );
    expect(ended.childSessionId).toBe(start.childSession);
    const { session: child } = await clients.sessions.getSession({ sessionId: start.childSession });
    expect(child).toMatchObject({
      ...{ parentSessionId: sessionId, rootSessionId: sessionId, owner: "caller", agent: "explore" },
      title: "Look around (@explore subagent)",
    });
    const { parts } = await clients.tools.listToolParts({ sessionId: start.childSession });
    expect(parts.map(({ tool, agent }) => [tool, agent])).toEqual([["glob", "explore"]]);
  });

  test("the child session continues by its id, under either name, for its own agent and parent only", async () => {
    const clients = at();
    const runner = await runnerFor({ agents: ["explore", "plan"] });
    const sessionId = await clients.newSession();
    const first = call(clients, { sessionId });
    const { childSession } = await runner.serve(() => "one");
    await first;
    const again = call(clients, { sessionId, callId: "t2", input: { task_id: childSession } });
    expect(await runner.serve(() => "two")).toMatchObject({ childSession, resume: true });
    expect(outputOf(await again)).toContain("two");

    const elsewhere = await clients.newSession();
    const stolen = await call(clients, { sessionId: elsewhere, input: { session_id: childSession } });
    expect(errorOf(stolen).error).toMatch(`Session ${childSession} is not a child of the current session.`);
    const other = await call(clients, { sessionId, callId: "t3", input: { session_id: childSession, agent: "plan" } });
    expect(errorOf(other).error).toMatch(`Session ${childSession} belongs to the agent explore, not to plan.`);
    const both = await call(clients, {
      sessionId,
      callId: "t4",
      input: { session_id: childSession, task_id: "ses_x" },
    });
    expect(errorOf(both)).toEqual({
      reason: ToolErrorReason.INVALID_INPUT,
      error: expect.stringContaining("session_id and task_id differ; send one of them"),
    });
  });

  test("two tasks do not work in one child session at once", async () => {
    const clients = at();
    const runner = await runnerFor();
    const sessionId = await clients.newSession();
    const first = call(clients, { sessionId });
    const start = await runner.next("start");
    const second = await call(clients, { sessionId, callId: "t2", input: { session_id: start.childSession } });
    expect(errorOf(second).error).toMatch("is at work for another task");
    runner.send({ case: "done", value: { run: start.run, text: "one" } });
    expect(outputOf(await first)).toContain("one");
  });

  test.each([
    [
      "an unknown agent",
      { agent: "nobody" },
      /^Unknown agent type: nobody is not a valid agent type\. Use one of: build,/,
    ],
    ["no agent", { agent: "" }, /Agent parameter is required/],
    ["two names of different agents", { subagent_type: "plan" }, /agent and subagent_type differ; send one of them/],
  ])("%s is refused", async (_, input, error) => {
    const clients = at();
    await runnerFor();
    const ended = await call(clients, { sessionId: await clients.newSession(), input });
    expect(errorOf(ended).error).toMatch(error);
  });

  test("an agent as which the owner of the session may not act is not started", async () => {
    const planner = at("planner");
    const sessionId = await planner.newSession({ agent: "plan" });
    const ended = await call(planner, { sessionId, agent: "plan" });
    expect(errorOf(ended).error).toMatch("Agent explore cannot run as a subagent");
  });

  test("it asks with the agent as pattern, and a rule may deny one", async () => {
    const clients = at();
    const runner = await runnerFor({ agents: ["plan", "secret"] });
    const sessionId = await clients.newSession();
    const denied = await call(clients, { sessionId, callId: "t1", input: { agent: "secret" } });
    expect(errorOf(denied).reason).toBe(ToolErrorReason.DENIED);
    const pending = read(
      clients.tools.executeTool({ sessionId, callId: "t2", tool: "task", input: { ...work, agent: "plan" } }),
    );
    await pending.until("permissionAsked");
    const person = at("approver");
    const { permissions } = await person.permissions.listPermissions({ sessionId });
    expect(permissions).toMatchObject([
      {
        permission: "task",
        patterns: ["plan"],
        metadata: { subagent_type: "plan" },
        preview: { text: "Find the tests." },
      },
    ]);
    const [{ id: permissionId } = { id: "" }] = permissions;
    await person.permissions.respondToPermission({ sessionId, permissionId, reply: PermissionReply.ONCE });
    await runner.serve(() => "planned");
    expect(outputOf(await pending.end())).toContain("planned");
  });

  test("the description lists the agents that have a runner and that no rule denies", async () => {
    await runnerFor({ agents: ["explore", "plan", "secret"] });
    const listed = async (who: Principal) => {
      const { tools } = await at(who).tools.listTools({});
      return tools.find(({ name }) => name === "task");
    };
    const [own, other] = [await listed("caller"), await listed("stranger")];
    expect(own?.description).toMatch(/\nAgents:\n- plan: .*\n- explore: /);
    expect(own?.description).not.toContain("secret");
    expect(other?.description).toContain("No agent can be started now");
    expect(own?.definitionId).toBe(other?.definitionId);
  });

  test("a runner gets no run of another principal's session", async () => {
    await runnerFor();
    const stranger = at("stranger");
    const ended = await call(stranger, { sessionId: await stranger.newSession() });
    expect(errorOf(ended).error).toMatch(/^No agent runner is connected/);
  });

  test("of two runners the one with the most free capacity gets a run", async () => {
    const clients = at();
    const [small, large] = [await runnerFor({ capacity: 1 }), await runnerFor({ capacity: 3 })];
    const sessionId = await clients.newSession();
    const pending = call(clients, { sessionId });
    await large.serve(() => "large");
    expect(outputOf(await pending)).toContain("large");
    const agents = await clientOf(AgentService, service.url, callerToken).listAgents({});
    const explore = agents.agents.find(({ name }) => name === "explore");
    expect(explore?.runners.map(({ name, freeCapacity }) => [name, freeCapacity])).toEqual([
      [`stream:${small.instanceId}`, 1],
      [`stream:${large.instanceId}`, 3],
    ]);
    expect(explore?.runners[0]?.bypasses).toMatch("was not judged");
  });

  test("a runner gets no more runs than it has capacity for, of tasks that start at the same time", async () => {
    const clients = at();
    const runner = await runnerFor({ capacity: 1 });
    const sessions = await Promise.all(Array.from({ length: 6 }, () => clients.newSession()));
    const tasks = sessions.map((sessionId) => call(clients, { sessionId }));
    const busy: string[] = [];
    for (const task of tasks) void task.then((ended) => busy.push(errorOf(ended).error));
    await expect.poll(() => busy.length).toBe(5);
    expect(busy.every((error) => error.includes("is busy"))).toBe(true);
    await runner.serve(() => "the only one");
    const outputs = (await Promise.all(tasks)).map(outputOf).filter((output) => output !== "");
    expect(outputs).toEqual([expect.stringContaining("the only one")]);
  });

  test("a subagent starts none below the depth limit", async () => {
    const clients = at();
    const runner = await runnerFor();
    const sessionId = await clients.newSession();
    const pending = call(clients, { sessionId });
    await runner.serve(async ({ childSession }) => {
      const below = await call(clients, { sessionId: childSession, agent: "build" });
      return errorOf(below).error;
    });
    expect(outputOf(await pending)).toContain("Subagent depth limit reached (1).");
  });

  test("a session tree runs no more tasks than the limit", async () => {
    const clients = at();
    const runner = await runnerFor();
    const sessionId = await clients.newSession();
    const running = ["t1", "t2"].map((callId) => call(clients, { sessionId, callId, input: { prompt: callId } }));
    const starts = [await runner.next("start"), await runner.next("start")];
    const third = await call(clients, { sessionId, callId: "t3" });
    expect(errorOf(third).error).toMatch("2 tasks of this session tree run already");
    for (const { run } of starts) runner.send({ case: "done", value: { run, text: "done" } });
    await Promise.all(running);
    const fourth = call(clients, { sessionId, callId: "t4" });
    await runner.serve(() => "room again");
    expect(outputOf(await fourth)).toContain("room again");
  });

  test("what is denied to the agent that starts a subagent is denied to the subagent", async () => {
    const clients = at();
    const runner = await runnerFor({ agents: ["free"] });
    const sessionId = await clients.newSession();
    const pending = call(clients, { sessionId, agent: "narrow", input: { agent: "free" } });
    await runner.serve(async ({ childSession }) => {
      const denied = await use(clients, childSession, "w1", "todowrite", { todos: [] });
      const { state } = await use(clients, childSession, "r1", "read", { filePath: "." });
      return `${errorOf(denied).reason} ${state.case}`;
    });
    expect(outputOf(await pending)).toContain(`\n${ToolErrorReason.DENIED} completed\n`);
    const { session } = await clients.sessions.getSession({ sessionId: (await pending).childSessionId });
    expect(session?.rules).toMatchObject([{ permission: "read" }, { permission: "todowrite", pattern: "*" }]);
  });
});

describe("the end of a run", () => {
  test("a failed run fails the task, which names the session to continue", async () => {
    const clients = at();
    const runner = await runnerFor();
    const sessionId = await clients.newSession();
    const pending = call(clients, { sessionId });
    const { run, childSession } = await runner.next("start");
    runner.send({ case: "failed", value: { run, message: "The model is away." } });
    expect(errorOf(await pending)).toEqual({
      reason: ToolErrorReason.FAILED,
      error: expect.stringMatching(
        new RegExp(
          `^Subagent failed \\(sessionID: ${childSession}\\): The model is away\\.\n\n.*call task with session_id "${childSession}"`,
        ),
      ),
    });
    await runner.next("ended");
  });

  test("a cancel reaches the runner and the open calls of the child session", async () => {
    const clients = at();
    const runner = await runnerFor({ agents: ["free"], capacity: 1 });
    const sessionId = await clients.newSession();
    const input = { agent: "free" };
    const pending = call(clients, { sessionId, input });
    const { run, childSession } = await runner.next("start");
    const inChild = { sessionId: childSession, waitMs: 60_000 };
    const asked = read(
      clients.tools.executeTool({
        ...inChild,
        callId: "b1",
        tool: "webfetch",
        agent: "build",
        input: { url: "https://example.com/" },
      }),
    );
    const slept = read(
      clients.tools.executeTool({ ...inChild, callId: "b2", tool: "bash", input: { command: "sleep 600" } }),
    );
    await asked.until("permissionAsked");
    await slept.find(({ event }) => event.case === "part" && event.value.state.case === "running");
    await clients.tools.cancelTool({ sessionId, callId: "t1", message: "Enough." });
    const ended = await pending;
    expect(errorOf(ended)).toEqual({
      reason: ToolErrorReason.CANCELLED,
      error: expect.stringMatching(/^Enough\.\n\nWhat the subagent did.*call task with session_id/),
    });
    expect(await runner.next("cancel")).toMatchObject({ run, reason: "Enough." });
    const cancelled = { reason: ToolErrorReason.CANCELLED, error: "The subagent's task has ended." };
    expect(errorOf(await asked.end())).toEqual(cancelled);
    expect(errorOf(await slept.end())).toEqual(cancelled);
    // The run counts until the runner has confirmed its end.
    const busy = await call(clients, { sessionId, callId: "t2", input });
    expect(errorOf(busy).error).toMatch("is busy");
    runner.send({ case: "failed", value: { run, message: "stopped" } });
    await runner.next("ended");
    const free = call(clients, { sessionId, callId: "t3", input: { ...input, prompt: "Go on." } });
    await runner.serve(() => "free again");
    expect(outputOf(await free)).toContain("free again");
  });

  test("a runner that is killed and does not return gives a stated outcome", async () => {
    const clients = at();
    const runner = await runnerFor();
    const sessionId = await clients.newSession();
    const pending = call(clients, { sessionId });
    const { childSession } = await runner.next("start");
    runner.kill();
    expect(errorOf(await pending)).toEqual({
      reason: ToolErrorReason.FAILED,
      error: expect.stringMatching(
        new RegExp(`disconnected and did not return within 3000 ms.*\n\n.*session_id "${childSession}"`),
      ),
    });
  });

  test("a runner that connects again holds its runs; the older stream ends", async () => {
    const clients = at();
    const runner = await runnerFor();
    const sessionId = await clients.newSession();
    const calls = ["t1", "t2"].map((callId) => call(clients, { sessionId, callId, input: { prompt: callId } }));
    const [kept, lost] = [await runner.next("start"), await runner.next("start")];
    const held = [kept.run, "run_unknown"];
    const again = await runnerFor({ instanceId: runner.instanceId, held });
    expect((await refusal(runner.ended.then((error) => Promise.reject(error)))).reason).toBe("RUNNER_REPLACED");
    expect(await again.next("cancel")).toMatchObject({ run: "run_unknown" });
    again.send({ case: "done", value: { run: kept.run, text: "kept" } });
    const ended = await Promise.all(calls);
    expect(ended.map(({ state }) => state.case).toSorted()).toEqual(["completed", "error"]);
    const failed = ended.find(({ childSessionId }) => childSessionId === lost.childSession);
    expect(failed && errorOf(failed).error).toMatch("connected again without this run");
  });

  test("a run goes on when the runner returns in time", async () => {
    const clients = at();
    const runner = await runnerFor();
    const pending = call(clients, { sessionId: await clients.newSession() });
    const { run } = await runner.next("start");
    runner.kill();
    await runner.ended;
    const again = await runnerFor({ instanceId: runner.instanceId, held: [run] });
    again.send({ case: "done", value: { run, text: "back" } });
    expect(outputOf(await pending)).toContain("back");
  });
});

describe("a hostile runner", () => {
  test.each<[string, RunnerOptions, string]>([
    ["an agent that there is not", { agents: ["nobody"] }, "UNKNOWN_AGENT"],
    [
      "an agent of which the token may not act",
      { agents: ["build"], token: "planner-token-for-tests" },
      "UNKNOWN_AGENT",
    ],
    ["no capacity", { capacity: 0 }, "INVALID_MESSAGE"],
    ["a short instance id", { instanceId: "x" }, "INVALID_MESSAGE"],
    ["a token without the role", { token: "approver-token-for-tests" }, "ROLE_MISSING"],
  ])("%s is refused", async (_, options, reason) => {
    const runner = openRunner(service, options);
    expect((await refusal(runner.ended.then((error) => Promise.reject(error)))).reason).toBe(reason);
  });

  test("a first message that is not hello, and a second hello, end the stream", async () => {
    const early = openRunner(service, { isMute: true });
    early.send({ case: "beat", value: {} });
    expect((await refusal(early.ended.then((error) => Promise.reject(error)))).message).toMatch("must be hello");
    const twice = await runnerFor();
    twice.send({
      case: "hello",
      value: { protocol: 1, instanceId: twice.instanceId, agents: ["explore"], capacity: 1, held: [] },
    });
    expect((await refusal(twice.ended.then((error) => Promise.reject(error)))).reason).toBe("INVALID_MESSAGE");
  });

  test("a silent one is disconnected", async () => {
    const runner = openRunner(service, { isMute: true });
    runner.send({
      case: "hello",
      value: { protocol: 1, instanceId: "silent-runner", agents: ["explore"], capacity: 1, held: [] },
    });
    await runner.next("welcome");
    expect(await refusal(runner.ended.then((error) => Promise.reject(error)))).toMatchObject({
      reason: "RUNNER_SILENT",
      metadata: { ms: "6000" },
    });
  });

  test("a flood of progress and of unknown runs is bounded, and the run still ends", async () => {
    const clients = at();
    const runner = await runnerFor();
    const sessionId = await clients.newSession();
    const pending = call(clients, { sessionId });
    const { run } = await runner.next("start");
    for (let n = 0; n < 3_000; n += 1) {
      runner.send({ case: "progress", value: { run, text: `${n} ${"x".repeat(3_000)}`, title: `step ${n}` } });
      runner.send({ case: "progress", value: { run: `run_${n}`, text: "unknown", title: "" } });
      if (n < 500) runner.send({ case: "done", value: { run: `run_${n}`, text: "unknown" } });
    }
    runner.send({ case: "done", value: { run, text: "after the flood" } });
    const ended = await pending;
    expect(outputOf(ended)).toContain("after the flood");
    const { parts } = await clients.tools.listToolParts({ sessionId });
    expect(parts).toHaveLength(1);
    const log = read(clients.tools.watchSession({ sessionId }));
    await log.find(({ event }) => event.case === "part" && event.value.state.case === "completed");
    const shown = log.seen.filter(({ event }) => event.case === "progress");
    const elapsedMs = (log.seen.at(-1)?.time ?? 0) - (log.seen[0]?.time ?? 0);
    expect(shown.length).toBeLessThanOrEqual(3 + elapsedMs / 800);
    expect(JSON.stringify(ended.state.value?.input)).toContain("Find the tests.");
  });

  test("an answer over the limit fails the run", async () => {
    const clients = at();
    const runner = await runnerFor();
    const pending = call(clients, { sessionId: await clients.newSession() });
    await runner.serve(() => "x".repeat(1_048_577));
    expect(errorOf(await pending).error).toMatch("has 1048577 bytes, over the limit of 1048576");
  });

  test("a done of another runner's run has no effect", async () => {
    const clients = at();
    const runner = await runnerFor();
    const stranger = await runnerFor({ token: "stranger-token-for-tests" });
    const pending = call(clients, { sessionId: await clients.newSession() });
    const { run } = await runner.next("start");
    stranger.send({ case: "done", value: { run, text: "forged" } });
    await stranger.next("ended");
    runner.send({ case: "done", value: { run, text: "true" } });
    expect(outputOf(await pending)).toContain("\ntrue\n");
  });
});
