import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { Code } from "@connectrpc/connect";
import { expect, test } from "vitest";
import { PermissionAction as Action, PermissionLayer as Layer } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { ToolErrorReason } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { connect, refusal } from "./clients.ts";
import { ledger } from "./ledger.ts";
import { read } from "./reading.ts";
import { useService } from "./service.ts";

const settings = `
[permission.bash]
"ls *" = "allow"
"rm *" = "deny"
[agent.strict.permission]
bash = "deny"
`;
const service = useService({ settings });
const rule = (permission: string, pattern: string, action: Action) => ({ permission, pattern, action });

test("a plan says what would be asked, and runs and records nothing", async () => {
  const agent = connect(service, "caller");
  const sessionId = await agent.newSession();
  const runs = ledger(service);
  const plan = await agent.tools.planTool({ sessionId, tool: "bash", input: { command: runs.append("ran") } });
  expect(plan).toMatchObject({
    title: runs.append("ran"),
    action: Action.ASK,
    asks: [
      { id: "", sessionId, permission: "edit", patterns: [runs.name] },
      { id: "", sessionId, permission: "bash", patterns: [runs.append("ran")] },
    ],
    preview: { command: runs.append("ran") },
  });
  expect(plan.decisions.map(({ permission, action }) => [permission, action])).toContainEqual(["bash", Action.ASK]);
  expect(plan.problem).toBeUndefined();
  expect(await runs.lines()).toHaveLength(0);
  expect((await agent.tools.listToolParts({ sessionId })).parts).toEqual([]);
  expect((await agent.permissions.listPermissions({ sessionId })).permissions).toEqual([]);
  expect((await agent.sessions.getSession({ sessionId })).session?.lastSeq).toBe(0n);
});

test("what a plan says is asked is what the call then asks", async () => {
  const agent = connect(service, "caller");
  const sessionId = await agent.newSession();
  const call = { sessionId, tool: "write", input: { filePath: "new.txt", content: "new\n" } };
  const [planned] = (await agent.tools.planTool(call)).asks;
  const asked = await read(agent.tools.executeTool({ ...call, callId: "c1" })).until("permissionAsked");
  const { permission, patterns, digest, preview, offers } = asked;
  expect(planned).toMatchObject({ permission, patterns, digest, preview, offers });
  expect(preview?.diff).toContain("+new");
});

test("rules decide by layer, the last match of a layer wins", async () => {
  const agent = connect(service, "caller");
  const explain = async (patterns: string[], agentName = "", permission = "bash") => {
    const { decisions } = await agent.permissions.explainPermission({ agent: agentName, permission, patterns });
    return decisions.map(({ action, layer, rule }) => [action, layer, rule?.pattern]);
  };
  expect(await explain(["ls -l", "rm x", "cat x"])).toEqual([
    [Action.ALLOW, Layer.CONFIG, "ls *"],
    [Action.DENY, Layer.CONFIG, "rm *"],
    [Action.ASK, Layer.UNSPECIFIED, undefined],
  ]);
  expect(await explain(["ls -l"], "strict")).toEqual([[Action.DENY, Layer.AGENT, "*"]]);
  expect(await explain(["notes.txt", "prod.env"], "", "read")).toEqual([
    [Action.ALLOW, Layer.DEFAULTS, "*"],
    [Action.ASK, Layer.DEFAULTS, "*.env"],
  ]);
  expect((await explain([`${service.data}/tokens/caller`], "free", "read")).at(0)).toEqual([
    Action.DENY,
    Layer.ENGINE,
    undefined,
  ]);
});

test("a command line is explained command by command, as a plan judges it", async () => {
  const agent = connect(service, "caller");
  const rules = [rule("bash", "git *", Action.ALLOW), rule("read", "*.env", Action.DENY)];
  for (const command of ["git status && rm -rf x", "git log $(id)", "git show HEAD:.env", "git status"]) {
    const question = { rules, onlyRules: true };
    const plan = await agent.tools.planTool({ tool: "bash", input: { command }, ...question });
    const answer = await agent.permissions.explainPermission({ permission: "bash", patterns: [command], ...question });
    expect([command, answer.action]).toEqual([command, plan.action]);
  }
  const chained = { permission: "bash", patterns: ["git status && rm -rf x"], rules, onlyRules: true };
  const { decisions } = await agent.permissions.explainPermission(chained);
  expect(decisions.map(({ pattern, action }) => [pattern, action])).toEqual([
    ["git status", Action.ALLOW],
    ["rm -rf x", Action.ASK],
  ]);
});

test("the reason names the nearest permission for one that is misspelled", async () => {
  const question = { permission: "bsh", patterns: ["ls"] };
  const { decisions } = await connect(service, "caller").permissions.explainPermission(question);
  expect(decisions[0]?.reason).toContain('did you mean "bash"?');
});

test("rules of the question are the last layer, or with only_rules the only one", async () => {
  const agent = connect(service, "caller");
  const question = { permission: "bash", patterns: ["rm x", "ls"], rules: [rule("bash", "rm *", Action.ALLOW)] };
  const last = await agent.permissions.explainPermission(question);
  expect(last.decisions.map(({ action, layer }) => [action, layer])).toEqual([
    [Action.ALLOW, Layer.REQUEST],
    [Action.ALLOW, Layer.CONFIG],
  ]);
  const only = await agent.permissions.explainPermission({ ...question, onlyRules: true });
  expect(only.decisions.map(({ action }) => action)).toEqual([Action.ALLOW, Action.ASK]);
  expect(only.action).toBe(Action.ASK);
});

test("the rules of a session and of its parent decide under their own names", async () => {
  const agent = connect(service, "caller");
  const parentSessionId = await agent.newSession({ rules: [rule("read", "secret*", Action.DENY)] });
  const sessionId = await agent.newSession({ parentSessionId, rules: [rule("read", "draft*", Action.ASK)] });
  const patterns = ["secret.txt", "draft.txt", "open.txt"];
  const { decisions } = await agent.permissions.explainPermission({ sessionId, permission: "read", patterns });
  expect(decisions.map(({ layer }) => layer)).toEqual([Layer.INHERITED, Layer.SESSION, Layer.DEFAULTS]);
});

test("a check that would fail is a problem beside the decisions", async () => {
  const agent = connect(service, "caller");
  await writeFile(join(service.workspace, "unread.txt"), "old\n");
  const sessionId = await agent.newSession();
  const missing = await agent.tools.planTool({ sessionId, tool: "read", input: { filePath: "no-such-file" } });
  expect(missing).toMatchObject({ action: Action.ALLOW, problem: { reason: ToolErrorReason.FAILED } });
  expect(missing.problem?.message).toContain("no-such-file");
  const unread = { filePath: "unread.txt", content: "new\n" };
  const { problem, asks } = await agent.tools.planTool({ sessionId, tool: "write", input: unread });
  expect(problem?.message).toMatch(/must read .*unread\.txt/);
  expect(asks).toHaveLength(1);
});

test("a plan of bad input or of an unknown tool is refused", async () => {
  const agent = connect(service, "caller");
  expect(await refusal(agent.tools.planTool({ tool: "bash", input: { command: 7 } }))).toMatchObject({
    code: Code.InvalidArgument,
    reason: "INVALID_INPUT",
    metadata: { tool: "bash" },
    message: expect.stringContaining("command"),
  });
  expect(await refusal(agent.tools.planTool({ tool: "hammer" }))).toMatchObject({
    code: Code.NotFound,
    reason: "UNKNOWN_TOOL",
    metadata: { tool: "hammer" },
  });
  expect(await refusal(agent.tools.planTool({ tool: "bash", agent: "nobody", input: {} }))).toMatchObject({
    code: Code.InvalidArgument,
    reason: "UNKNOWN_AGENT",
  });
});

test("an agent that may use nothing of a tool is not offered it", async () => {
  const agent = connect(service, "caller");
  const offered = async (name: string) => (await agent.tools.listTools({ agent: name })).tools.map(({ name }) => name);
  const all = await offered("");
  expect(all).toEqual(expect.arrayContaining(["bash", "edit", "read"]));
  expect(await offered("strict")).toEqual(all.filter((name) => name !== "bash"));
});
