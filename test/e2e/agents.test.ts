import { mkdir, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import {
  PermissionAction as Action,
  PermissionLayer as Layer,
  PermissionReason as Reason,
} from "../../gen/opencode/tool/v1/permission_pb.ts";
import { PermissionReply, ToolErrorReason } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { connect, refusal } from "./clients.ts";
import { read } from "./reading.ts";
import { useService } from "./service.ts";

// What the configuration allows everybody, so that only an agent's own limits are left.
const settings = `
[permission]
edit = "allow"
[permission.bash]
"*" = "allow"
[permission.read]
"private/*" = "deny"
[agent.open.permission]
"*" = "allow"
[agent.plan.permission.edit]
"plans/*" = "allow"
`;
const service = useService({ settings });
const rule = (permission: string, pattern: string, action: Action) => ({ permission, pattern, action });
const bash = (command: string) => ({ tool: "bash", input: { command } });
const write = (filePath: string) => ({ tool: "write", input: { filePath, content: "x\n" } });

async function actionOf(agent: string, call: { tool: string; input: Record<string, string> }, sessionId = "") {
  const { action, decisions } = await connect(service, "caller").tools.planTool({ agent, sessionId, ...call });
  return { action, decisions };
}

/** Waits for the end of a call that nobody has to be asked for, and returns why it failed. */
async function refusalOf(call: { sessionId: string; callId: string; agent?: string; tool: string; input: object }) {
  const { part } = await connect(service, "caller").tools.callTool({ ...call, input: { ...call.input } });
  return part?.state.case === "error" ? part.state.value.reason : undefined;
}

test("plan and explore run commands that look, as far as the rules allow them to everybody", async () => {
  for (const command of ["git log --oneline", "ls -la", "cat a.txt", "git diff HEAD", "pwd"])
    for (const agent of ["plan", "explore", "build"])
      expect([agent, command, (await actionOf(agent, bash(command))).action]).toEqual([agent, command, Action.ALLOW]);
});

test.each([
  "touch x",
  "git commit -m x",
  "git log --output=x",
  "git diff --outp x",
  "git branch -D main",
  "python3 -c print",
  "sed -i s/a/b/ x",
  "rm x",
  "sh -c ls",
  "ls $(touch x)",
  "cat a.txt > b.txt",
  "git log; touch x",
])("plan and explore cannot write through the shell: %s", async (command) => {
  const runs = await Promise.all(["plan", "explore"].map((agent) => actionOf(agent, bash(command))));
  expect(runs.map(({ action }) => action)).toEqual([Action.DENY, Action.DENY]);
});

test("plan edits nothing, but what the configuration allows plan itself; build edits", async () => {
  expect((await actionOf("plan", write("a.txt"))).action).toBe(Action.DENY);
  expect((await actionOf("plan", write("plans/a.md"))).action).toBe(Action.ALLOW);
  expect((await actionOf("build", write("a.txt"))).action).toBe(Action.ALLOW);
  const { decisions } = await actionOf("plan", write("a.txt"));
  expect(decisions).toContainEqual(
    expect.objectContaining({ permission: "edit", layer: Layer.AGENT_LIMITS, reasonCode: Reason.RULE }),
  );
  const { tools } = await connect(service, "caller").tools.listTools({ agent: "explore" });
  expect(tools.map(({ name }) => name)).not.toContain("write");
});

test("one tool is returned as the list shows it, and one that the list hides is unknown", async () => {
  const { tools } = connect(service, "caller");
  for (const agent of ["build", "explore"]) {
    const listed = (await tools.listTools({ agent, modelId: "gemini-3" })).tools;
    for (const name of ["bash", "write", "read", "skill", "missing"]) {
      const one = tools.getTool({ name, agent, modelId: "gemini-3" });
      const shown = listed.find((tool) => tool.name === name);
      if (shown !== undefined) expect((await one).tool).toEqual(shown);
      else expect(await refusal(one)).toMatchObject({ reason: "UNKNOWN_TOOL" });
    }
  }
});

test("explore is asked before it reads a .env, and reads other files", async () => {
  await writeFile(join(service.workspace, "a.txt"), "a\n");
  await writeFile(join(service.workspace, ".env"), "KEY=1\n");
  const agent = connect(service, "caller");
  const sessionId = await agent.newSession({ agent: "explore" });
  const reading = { sessionId, callId: "env", tool: "read", input: { filePath: ".env" } };
  expect(await read(agent.tools.executeTool(reading)).until("permissionAsked")).toMatchObject({ permission: "read" });
  const plain = await agent.tools.callTool({ ...reading, callId: "a", input: { filePath: "a.txt" } });
  expect(plain.part?.state.case).toBe("completed");
});

test("a limit allows nothing by itself", async () => {
  expect((await actionOf("explore", { tool: "read", input: { filePath: "private/x" } })).action).toBe(Action.DENY);
});

test("a child, whatever its agent, is denied what its parent's agent and rules deny", async () => {
  const agent = connect(service, "caller");
  const parent = await agent.newSession({ agent: "plan", rules: [rule("read", "diary*", Action.DENY)] });
  const child = await agent.newSession({ parentSessionId: parent, agent: "open" });
  const grandchild = await agent.newSession({ parentSessionId: child, agent: "open" });
  for (const sessionId of [child, grandchild]) {
    const call = (callId: string, made: { tool: string; input: object }) => ({ sessionId, callId, ...made });
    expect(await refusalOf(call("w", write("a.txt")))).toBe(ToolErrorReason.DENIED);
    expect(await refusalOf(call("b", bash("touch x")))).toBe(ToolErrorReason.DENIED);
    expect(await refusalOf(call("o", bash("ls $(touch x)")))).toBe(ToolErrorReason.DENIED);
    expect(await refusalOf(call("r", { tool: "read", input: { filePath: "diary.txt" } }))).toBe(ToolErrorReason.DENIED);
    expect(await refusalOf(call("l", bash("ls")))).toBeUndefined();
    const { decisions } = await actionOf("open", write("a.txt"), sessionId);
    expect(decisions.flatMap(({ matches }) => matches)).toContainEqual(
      expect.objectContaining({ layer: Layer.INHERITED, source: "agent plan", decided: true }),
    );
  }
});

test("a child of explore looks, and does nothing else", async () => {
  const agent = connect(service, "caller");
  const parentSessionId = await agent.newSession({ agent: "explore" });
  const child = await agent.newSession({ parentSessionId, agent: "build" });
  await writeFile(join(service.workspace, "seen.txt"), "a\n");
  const reading = { sessionId: child, callId: "r", tool: "read", input: { filePath: "seen.txt" } };
  expect(await refusalOf(reading)).toBeUndefined();
  expect(await refusalOf({ ...reading, ...write("a.txt"), callId: "w" })).toBe(ToolErrorReason.DENIED);
});

async function workspaceFile(text: string): Promise<void> {
  await mkdir(join(service.workspace, ".opencode"), { recursive: true });
  await writeFile(join(service.workspace, ".opencode/config.toml"), text);
  onTestFinished(() => rm(join(service.workspace, ".opencode"), { recursive: true }));
}

test("the workspace's own policy file narrows at once, and never widens", async () => {
  const touching = bash("touch t");
  expect((await actionOf("build", touching)).action).toBe(Action.ALLOW);
  await workspaceFile(
    '[permission.bash]\n"touch *" = "deny"\n[permission]\nwebfetch = "allow"\n[permission.read]\n"*" = "allow"',
  );
  const { action, decisions } = await actionOf("build", touching);
  expect(action).toBe(Action.DENY);
  const judged = decisions.find(({ permission }) => permission === "bash");
  expect(judged?.matches.at(-1)).toMatchObject({ source: ".opencode/config.toml", decided: true });
  expect((await actionOf("build", { tool: "read", input: { filePath: "private/x" } })).action).toBe(Action.DENY);
  const { action: fetching } = await connect(service, "caller").permissions.explainPermission({
    permission: "webfetch",
    patterns: ["https://example.org/"],
  });
  expect(fetching).toBe(Action.ASK);
});

test("while the workspace's policy file is broken everything asks, also what was granted, with the reason", async () => {
  const [agent, person] = [connect(service, "caller"), connect(service, "approver")];
  const sessionId = await agent.newSession();
  await writeFile(join(service.workspace, "b.env"), "b\n");
  const reading = { sessionId, callId: "c1", tool: "read", input: { filePath: "b.env" } };
  const first = read(agent.tools.executeTool(reading));
  const { id: permissionId } = await first.until("permissionAsked");
  await person.permissions.respondToPermission({ sessionId, permissionId, reply: PermissionReply.ALWAYS });
  expect((await first.end()).state.case).toBe("completed");
  const planned = async () => await agent.tools.planTool({ ...reading, agent: "" });
  expect((await planned()).decisions[0]).toMatchObject({ action: Action.ALLOW, reasonCode: Reason.GRANT });
  await workspaceFile('[permission]\nread = "denny"\n');
  expect((await planned()).decisions[0]).toMatchObject({
    action: Action.ASK,
    layer: Layer.WORKSPACE,
    reasonCode: Reason.BROKEN_POLICY,
    reason: expect.stringContaining(".opencode/config.toml cannot be used; correct: line 2: permission.read: must be"),
  });
  await read(agent.tools.executeTool({ ...reading, callId: "c2" })).until("permissionAsked");
});

test("a token acts only as its agents, whichever request names another one or leaves it to the session", async () => {
  const planner = connect(service, "planner");
  const sessionId = await planner.newSession({ agent: "plan" });
  const unnamed = await planner.newSession();
  const echo = { callId: "c1", tool: "echo", input: { text: "done" } };
  const attempts: Record<string, () => PromiseLike<unknown>> = {
    CreateSession: () => planner.sessions.createSession({ agent: "build" }),
    "CreateSession of a child": () => planner.sessions.createSession({ parentSessionId: sessionId, agent: "build" }),
    CallTool: () => planner.tools.callTool({ sessionId, agent: "build", ...echo }),
    "CallTool in a session without an agent": () => planner.tools.callTool({ sessionId: unnamed, ...echo }),
    ExecuteTool: () => read(planner.tools.executeTool({ sessionId, agent: "build", ...echo })).end(),
    PlanTool: () => planner.tools.planTool({ sessionId, agent: "build", tool: "echo", input: echo.input }),
    "PlanTool without a session": () => planner.tools.planTool({ tool: "echo", input: echo.input }),
    "ListTools without an agent": () => planner.tools.listTools({}),
    ListTools: () => planner.tools.listTools({ agent: "build" }),
    GetTool: () => planner.tools.getTool({ name: "read", agent: "build" }),
  };
  for (const [name, attempt] of Object.entries(attempts)) {
    const { reason, message } = await refusal(attempt());
    expect([name, reason, message]).toEqual([name, "UNKNOWN_AGENT", 'this token may not act as agent "build"']);
  }
  expect((await planner.tools.listToolParts({ sessionId })).parts).toEqual([]);
  expect((await planner.tools.callTool({ sessionId, ...echo })).part?.state.case).toBe("completed");
});
