import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { expect, test } from "vitest";
import { ToolErrorReason } from "../../gen/opencode/tool/v1/tool_pb.ts";
import {
  type BeginCallRequestSchema,
  type BeginCallResponse,
  BeginCallResponseSchema,
  type FinishCallRequestSchema,
  RefusedSchema,
  WaitingSchema,
} from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { answerClaude, denyClaude, ownClaudeTool, resumerKey } from "../../src/agents/hooks/claude.ts";
import { readClaudeHook } from "../../src/agents/hooks/claude-hook.ts";
import { AlreadyBegunError, cutOutput, type UseDecision } from "../../src/agents/hooks/delegate.ts";
import { recordedClaudeHook, recordedClaudeHooks } from "./recorded.ts";

type Answer = (request: MessageInitShape<typeof BeginCallRequestSchema>) => BeginCallResponse["outcome"];

const assignment = "0123456789abcdef0123456789abcdef";
const begun: Answer = ({ input }) => ({
  case: "begun",
  value: { $typeName: "opencode.tool.v1.Begun", assignment, callId: "c", sessionId: "s", ...(input && { input }) },
});

/** Answers hooks with a decision in place of the service; records what it is asked. */
function answering(decide: Answer, more: { resumer?: string; ageMs?: number } = {}) {
  const begins: MessageInitShape<typeof BeginCallRequestSchema>[] = [];
  const finishes: MessageInitShape<typeof FinishCallRequestSchema>[] = [];
  const remembered = new Map<string, UseDecision>();
  if (more.resumer !== undefined)
    remembered.set(resumerKey(more.resumer), { case: "waiting", value: create(WaitingSchema) });
  const context = {
    calls: {
      async begin(request: MessageInitShape<typeof BeginCallRequestSchema>) {
        begins.push(request);
        return create(BeginCallResponseSchema, { outcome: decide(request) });
      },
      async finish(request: MessageInitShape<typeof FinishCallRequestSchema>) {
        finishes.push(request);
      },
    },
    memory: {
      put: async (key: string, decision: UseDecision) => void remembered.set(key, decision),
      async get(key: string) {
        const decision = remembered.get(key);
        return decision && { decision, ageMs: more.ageMs ?? 0 };
      },
      remove: async (key: string) => void remembered.delete(key),
    },
    endsAt: 0,
    isOwnTool: async (tool: string) => ownClaudeTool(tool, "random") === "read",
  };
  const answer = (text: string) => answerClaude(context, readClaudeHook(text));
  return { answer, begins, finishes };
}

const hook = (event: string, tool: string) => recordedClaudeHook("/home/ann/shop", event, tool).text;

test("a use that begins is allowed with its own input, and nothing is left to Claude's own prompt", async () => {
  const { answer, begins } = answering(begun);
  expect(await answer(hook("PreToolUse", "Bash"))).toEqual({
    hookSpecificOutput: {
      hookEventName: "PreToolUse",
      permissionDecision: "allow",
      permissionDecisionReason: "Allowed by Toolgate.",
    },
  });
  expect(begins).toMatchObject([
    {
      kind: "claude",
      foreignTool: "Bash",
      input: { command: "touch marker; echo hi", description: "x" },
      cwd: "/home/ann/shop",
      permissionMode: "default",
      waitMs: 0,
    },
  ]);
});

test("an input that an approver edited replaces that of the model", async () => {
  const { answer } = answering(() =>
    begun({ $typeName: "opencode.tool.v1.BeginCallRequest", input: { command: "ls" } } as never),
  );
  expect(await answer(hook("PreToolUse", "Bash"))).toMatchObject({
    hookSpecificOutput: { permissionDecision: "allow", updatedInput: { command: "ls" } },
  });
  expect(await answer(hook("PermissionRequest", "Bash"))).toMatchObject({
    hookSpecificOutput: { decision: { behavior: "allow", updatedInput: { command: "ls" } } },
  });
});

test("a refusal is a denial with the reason; PermissionRequest has its own form", async () => {
  const refused: Answer = () => ({
    case: "refused",
    value: { $typeName: "opencode.tool.v1.Refused", reason: 5, message: "Rejected by ann: no" },
  });
  expect(await answering(refused).answer(hook("PreToolUse", "Bash"))).toMatchObject({
    hookSpecificOutput: { permissionDecision: "deny", permissionDecisionReason: "Rejected by ann: no" },
  });
  expect(await answering(refused).answer(hook("PermissionRequest", "Bash"))).toEqual({
    hookSpecificOutput: {
      hookEventName: "PermissionRequest",
      decision: { behavior: "deny", message: "Rejected by ann: no" },
    },
  });
});

const waiting: Answer = () => ({
  case: "waiting",
  value: { $typeName: "opencode.tool.v1.Waiting", permissions: [], lastSeq: 1n },
});

test("a use that nobody answered in time is denied, and the text names the way back", async () => {
  expect(await answering(waiting).answer(hook("PreToolUse", "Bash"))).toMatchObject({
    hookSpecificOutput: {
      permissionDecision: "deny",
      permissionDecisionReason: "not answered yet; if it is approved later, repeat the same call",
    },
  });
});

test("a use that waits is deferred only while a program runs that resumes this session", async () => {
  const text = hook("PreToolUse", "Bash");
  const decided = (permissionDecision: string) => ({ hookSpecificOutput: { permissionDecision } });
  const resumer: string = JSON.parse(text).session_id;
  expect(await answering(waiting, { resumer }).answer(text)).toMatchObject(decided("defer"));
  expect(await answering(waiting, { resumer, ageMs: 31_000 }).answer(text)).toMatchObject(decided("deny"));
  expect(await answering(waiting, { resumer: "another" }).answer(text)).toMatchObject(decided("deny"));
});

test("a response without an outcome is no decision", async () => {
  const { answer } = answering(() => ({ case: undefined }));
  await expect(answer(hook("PreToolUse", "Bash"))).rejects.toThrow("answered without a decision");
});

test("PermissionRequest takes the decision of PreToolUse of the last minute, and asks otherwise", async () => {
  const pre = hook("PreToolUse", "Bash");
  const request = JSON.stringify({ ...JSON.parse(pre), hook_event_name: "PermissionRequest", tool_use_id: undefined });
  const recent = answering(begun, { ageMs: 59_000 });
  await recent.answer(pre);
  expect(await recent.answer(request)).toMatchObject({ hookSpecificOutput: { decision: { behavior: "allow" } } });
  expect(recent.begins).toHaveLength(1);

  const old = answering(begun, { ageMs: 61_000 });
  await old.answer(pre);
  await old.answer(request);
  expect(old.begins).toHaveLength(2);
  const other = JSON.stringify({ ...JSON.parse(request), tool_input: { command: "touch other" } });
  await recent.answer(other);
  expect(recent.begins).toHaveLength(2);
});

test("each recorded use is reported with its result, exit code and the digest of its input", async () => {
  const { answer, finishes } = answering(begun);
  for (const { text, event } of recordedClaudeHooks("/home/ann/shop")) {
    if (event !== "PermissionRequest") await answer(text);
  }
  const bash = { assignment, inputDigest: expect.stringMatching(/^[0-9a-f]{64}$/) };
  expect(finishes).toMatchObject([
    { ...bash, result: { case: "output", value: "hi" }, exit: 0 },
    { ...bash, result: { case: "error", value: "Exit code 1\nout\nerr" }, exit: 1 },
    { result: { case: "output", value: "one\ntwo\n" } },
    { result: { case: "output", value: "/home/ann/shop/a.txt\n@@ -1,2 +1,2 @@\n one\n-two\n+three" } },
    { result: { case: "output", value: "/home/ann/shop/b.txt" } },
    { ...bash, result: { case: "output", value: "" }, exit: 0 },
    { result: { case: "output", value: "done" } },
    { result: { case: "output", value: "" } },
  ]);
  // The last one runs in the background and has no exit code yet.
  expect(finishes.at(-1)?.exit).toBeUndefined();
  expect(new Set(finishes.map(({ inputDigest }) => inputDigest)).size).toBe(8);
});

test("a subagent has a session below that of the main agent, and its type as name", async () => {
  const { answer, begins } = answering(begun);
  for (const { text, event } of recordedClaudeHooks("/home/ann/shop")) {
    if (event === "PreToolUse") await answer(text);
  }
  const [{ foreignSession: main } = {}] = begins;
  expect(begins.filter(({ foreignAgent }) => foreignAgent)).toMatchObject([
    {
      foreignAgent: "general-purpose",
      foreignParent: main,
      foreignSession: expect.stringMatching(new RegExp(`^${main}/a[0-9a-f]+$`)),
    },
  ]);
});

test("a result without a known decision is not reported", async () => {
  const { answer, finishes } = answering(begun);
  expect(await answer(hook("PostToolUse", "Bash"))).toEqual({});
  expect(finishes).toEqual([]);
});

test("of two hooks of one use the second takes the approval that the first got", async () => {
  let count = 0;
  const { answer } = answering((request) => {
    count += 1;
    if (count > 1) throw new AlreadyBegunError("it began before");
    return begun(request);
  });
  const first = await answer(hook("PreToolUse", "Bash"));
  expect(await answer(hook("PreToolUse", "Bash"))).toEqual(first);
  // After the report the use is over.
  await answer(hook("PostToolUse", "Bash"));
  await expect(answer(hook("PreToolUse", "Bash"))).rejects.toThrow(AlreadyBegunError);
});

test("an approval of long ago is not given to another use with the same id", async () => {
  let count = 0;
  const { answer } = answering(
    (request) => {
      count += 1;
      if (count > 1) throw new AlreadyBegunError("it began before");
      return begun(request);
    },
    { ageMs: 60_000 },
  );
  await answer(hook("PreToolUse", "Bash"));
  await expect(answer(hook("PreToolUse", "Bash"))).rejects.toThrow(AlreadyBegunError);
});

test("a use that fails takes no approval of another hook", async () => {
  let count = 0;
  const { answer } = answering((request) => {
    count += 1;
    if (count > 1) throw new Error("the service is broken");
    return begun(request);
  });
  await answer(hook("PreToolUse", "Bash"));
  await expect(answer(hook("PreToolUse", "Bash"))).rejects.toThrow("the service is broken");
});

test("a use whose earlier request ended without an answer is asked again", async () => {
  let count = 0;
  const waiting = create(WaitingSchema, { permissions: [{ id: "per_1" }] });
  const expired = create(RefusedSchema, { reason: ToolErrorReason.EXPIRED, message: "it expired" });
  const { answer, begins } = answering((request) => {
    count += 1;
    if (count === 1) return { case: "waiting", value: waiting };
    return request.resume === "per_1" ? { case: "refused", value: expired } : begun(request);
  });
  await answer(hook("PreToolUse", "Bash"));
  const again = await answer(hook("PreToolUse", "Bash"));
  expect(again).toMatchObject({ hookSpecificOutput: { permissionDecision: "allow" } });
  expect(begins.map(({ resume = "" }) => resume)).toEqual(["", "per_1", ""]);
});

test("only existing tools of our own MCP server are not asked", async () => {
  const { answer, begins } = answering(begun);
  const of = (tool: string) => JSON.stringify({ ...JSON.parse(hook("PreToolUse", "Bash")), tool_name: tool });
  expect(await answer(of("mcp__random__read"))).toMatchObject({ hookSpecificOutput: { permissionDecision: "allow" } });
  expect(begins).toEqual([]);
  await answer(of("mcp__random__invented"));
  // The name of another server, also one of the same length.
  await answer(of("mcp__other__read"));
  await answer(of("mcp__rendom__read"));
  const asked = ["mcp__random__invented", "mcp__other__read", "mcp__rendom__read"];
  expect(begins.map(({ foreignTool }) => foreignTool)).toEqual(asked);
});

test.each([
  ["not JSON", "is not JSON"],
  ["[]", "is not a JSON object"],
  ["{}", "has no hook_event_name"],
  ['{"hook_event_name":"Stop"}', 'hook_event_name is "Stop"'],
  ['{"hook_event_name":"PreToolUse","session_id":"s","cwd":"/"}', "has no tool_name"],
  [
    '{"hook_event_name":"PreToolUse","session_id":"s","cwd":"/","tool_name":"Bash","tool_input":[]}',
    "has no tool_input",
  ],
])("the input %s is refused", (text, reason) => {
  expect(() => readClaudeHook(text)).toThrow(reason);
});

test("a failure has the form of its event: two deny, and a tool that ran gets a message", () => {
  expect(denyClaude("PreToolUse", "why")).toMatchObject({ hookSpecificOutput: { permissionDecision: "deny" } });
  expect(denyClaude("PermissionRequest", "why")).toMatchObject({
    hookSpecificOutput: { decision: { behavior: "deny" } },
  });
  expect(denyClaude("PostToolUseFailure", "why")).toEqual({ systemMessage: "why" });
});

test("an output of more than 512 KiB is cut between characters, and the cut is marked", () => {
  const text = "é".repeat(300_000);
  const cut = cutOutput(text);
  expect(Buffer.byteLength(cut)).toBeLessThanOrEqual(524_288);
  expect(cut).toMatch(/é\n\[cut by the sender: 600000 bytes in all\]$/);
  expect(cutOutput("short")).toBe("short");
});
