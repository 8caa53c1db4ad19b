import { readFileSync } from "node:fs";
import { mkdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { create, type JsonObject } from "@bufbuild/protobuf";
import { expect, test } from "vitest";
import {
  PermissionAction as Action,
  AuditEntrySchema,
  DecisionKind,
  PermissionLayer as Layer,
  PermissionOutcome,
  PermissionReason,
} from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { PolicyChange, SimulationSummary } from "../../gen/opencode/tool/v1/permission_service_pb.ts";
import { SessionSchema } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import {
  PermissionReply,
  type PermissionRequest,
  PermissionRequestSchema,
  RiskKind,
} from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { AskRecord } from "../../src/approval/ports.ts";
import { createRuleReview } from "../../src/call/rule-review.ts";
import { newId } from "../../src/core/ids.ts";
import type { Principal } from "../../src/core/principal.ts";
import { toolgate } from "../cli/toolgate.ts";
import { main } from "../main.ts";
import { connect, refusal } from "./clients.ts";
import { useService } from "./service.ts";

const settings = `
[permission.bash]
"git push *" = "deny"
"ls *" = "allow"
[agent.plan.permission.edit]
"plans/*" = "allow"
[agent.typed.permission.edit]
"*" = { action = "allow", when = "tool == 'write' && size(input.content) <= 20" }
`;
const service = useService({ settings });
const rule = (permission: string, pattern: string, action: Action) => ({ permission, pattern, action });

test("the rules of an agent are listed as they are judged: those that count as one, then what narrows", async () => {
  const { permissions } = connect(service, "approver");
  const { agent, workspace, lists } = await permissions.listRules({ agent: "plan" });
  expect([agent, workspace]).toEqual(["plan", "default"]);
  expect(lists.map(({ layer, source }) => [layer, source])).toEqual([
    [Layer.DEFAULTS, ""],
    [Layer.CONFIG, ""],
    [Layer.AGENT, "plan"],
    [Layer.AGENT_LIMITS, "plan"],
  ]);
  expect(lists[1]?.rules).toMatchObject([rule("bash", "git push *", Action.DENY), rule("bash", "ls *", Action.ALLOW)]);
  expect(lists[2]?.rules).toMatchObject([rule("edit", "plans/*", Action.ALLOW)]);
  expect(lists[3]?.rules.at(-1)).toMatchObject(rule("edit", "plans/*", Action.ALLOW));
});

test("what a decision names by layer, source and index is what the list has there", async () => {
  const [caller, person] = [connect(service, "caller"), connect(service, "approver")];
  const parentSessionId = await caller.newSession({ agent: "plan", rules: [rule("read", "diary*", Action.DENY)] });
  const sessionId = await caller.newSession({ parentSessionId, rules: [rule("bash", "git *", Action.ASK)] });
  const { lists } = await person.permissions.listRules({ place: { case: "sessionId", value: sessionId } });
  const questions = [
    { sessionId, permission: "bash", patterns: ["git push origin", "ls"] },
    { sessionId, permission: "read", patterns: ["diary.txt", "a.env"] },
    { sessionId, permission: "edit", patterns: ["plans/a.md"] },
  ];
  const answers = await Promise.all(questions.map((question) => person.permissions.explainPermission(question)));
  const matches = answers.flatMap(({ decisions }) => decisions.flatMap((decision) => decision.matches));
  expect(new Set(matches.map(({ layer }) => layer))).toEqual(
    new Set([Layer.DEFAULTS, Layer.CONFIG, Layer.AGENT, Layer.AGENT_LIMITS, Layer.INHERITED, Layer.SESSION]),
  );
  for (const { layer, source, ruleIndex, rule } of matches) {
    const list = lists.find((one) => one.layer === layer && one.source === source);
    expect(list?.rules[ruleIndex]).toEqual(rule);
  }
});

test("a condition decides by the input that the call runs with, and no answer outlives that input", async () => {
  const [caller, person] = [connect(service, "caller"), connect(service, "approver")];
  const sessionId = await caller.newSession({ agent: "typed" });
  const plan = (tool: string, input: JsonObject) => caller.tools.planTool({ sessionId, tool, input });
  expect((await plan("write", { filePath: "a.txt", content: "short" })).action).toBe(Action.ALLOW);
  const { action, decisions, asks } = await plan("write", { filePath: "a.txt", content: "a".repeat(21) });
  expect(action).toBe(Action.ASK);
  expect(decisions[0]).toMatchObject({
    reasonCode: PermissionReason.CONDITION,
    reason: expect.stringContaining(`does not count, since tool is "write"; input.content is "${"a".repeat(21)}": ask`),
  });
  // A grant names a path, which says nothing about the input.
  expect(asks.map(({ always, offers }) => [always, offers])).toEqual([[[], []]]);
  const other = await plan("edit", { filePath: "a.txt", oldString: "", newString: "x" });
  expect(other.decisions[0]?.reason).toContain('since tool is "edit"; input.content is missing');
  const explained = await person.permissions.explainPermission({ sessionId, permission: "edit", patterns: ["a.txt"] });
  expect(explained.decisions[0]?.reason).toContain("since tool is unknown here; input is unknown here");
});

/** Reviews a past that never was, by the rules of the service. */
function reviewOf(past: readonly { request: PermissionRequest; isApproved: boolean | undefined; time: number }[]) {
  const { permissions } = connect(service, "approver");
  const reads = { count: 0 };
  const requests = new Map(past.map(({ request }) => [request.id, request]));
  const entries = past.flatMap(({ request: { id }, isApproved, time }) => {
    const outcome = isApproved ? PermissionOutcome.ONCE : PermissionOutcome.REJECT;
    const settled = { permissionId: id, outcome, by: "ann" };
    return [
      { time, record: { kind: DecisionKind.ASKED, permissionIds: [id] } },
      ...(isApproved === undefined ? [] : [{ time, record: { kind: DecisionKind.SETTLED, settled } }]),
    ].map((entry) => create(AuditEntrySchema, entry));
  });
  const review = createRuleReview({
    sessions: { list: async () => [create(SessionSchema, { id: "ses_1", rootSessionId: "ses_1" })] },
    listDecisions: async ({ afterSeq }) => (afterSeq === 0 ? entries : []),
    listAudits: async () => [],
    async findAsk(id) {
      reads.count += 1;
      const request = requests.get(id);
      return request && ({ request } as AskRecord);
    },
    planner: {
      explain: (_, request) => permissions.explainPermission(request),
      rules: (_, request) => permissions.listRules(request),
    },
    now: () => 30 * 86_400_000,
  });
  return { review, reads };
}

test("a rule is suggested for what people approved again and again, and the rest says what it lacks", async () => {
  const asked = (text: string, words: string[], days: number[], isApproved: boolean | undefined = true, fields = {}) =>
    days.map((day) => {
      const options = text.split(" ").filter((word) => word.startsWith("-"));
      const offers = [{ match: { match: { case: "prefix" as const, value: { words, options } } } }];
      const about = { id: newId("per", day), agent: "build", permission: "bash", patterns: [text], offers };
      return { request: create(PermissionRequestSchema, { ...about, ...fields }), isApproved, time: day * 86_400_000 };
    });
  const days = [1, 1, 2, 2, 3];
  const unanswered = asked("npm test all", ["npm", "test"], [3]).map((past) => ({ ...past, isApproved: undefined }));
  const past = [
    ...[
      ...asked("npm test unit", ["npm", "test"], days),
      ...asked("npm test e2e", ["npm", "test"], [3]),
      ...unanswered,
    ],
    ...asked("npm publish", ["npm", "publish"], days, true, { risks: [{ kind: RiskKind.PUBLISH }] }),
    ...[...asked("make all", ["make"], days), ...asked("make -k all", ["make"], [2], false)],
    ...[...asked("cargo build", ["cargo", "build"], days), ...asked("cargo build x", ["cargo", "build"], [2], false)],
    ...asked("go vet", ["go", "vet"], [1, 1, 1, 1, 1]),
    ...asked("go run x", ["go", "run"], [1, 2, 2]),
    ...asked("git status", ["git", "status"], days),
    ...asked("ls src", ["ls"], days),
  ];
  const { review, reads } = reviewOf(past);
  const principal = { id: "ann", agents: ["*"], workspaces: ["*"] } as unknown as Principal;
  const { rules, misses, toml, ...counts } = await review.suggest(principal, 30, undefined);
  const toTry = `[agent.build.permission.bash]
# approved 6 times on 3 days, never rejected; saves 7 questions
# allows as well: npm test all
"npm test *" = "allow"

[[permission_test]]
agent = "build"
permission = "bash"
pattern = "npm test unit"
expect = "allow"
`;
  expect(rules).toEqual([
    {
      ...{ agent: "build", permission: "bash", pattern: "npm test *", example: "npm test unit" },
      ...{ approvals: 6, days: 3, saves: 7, alsoAllows: ["npm test all"], toml: toTry },
    },
  ]);
  expect(toml).toBe(toTry);
  expect(counts).toEqual({ requests: past.length, answered: past.length - 1, incomplete: false });
  expect(misses?.map(({ pattern, approvals, reason }) => `${approvals} of ${pattern}, ${reason}`)).toEqual([
    "5 of cargo build *, and a rejection: none may be",
    "5 of git status *, a stricter rule of the configuration may meet it",
    "5 of go vet *, on one day: 2 are needed",
    "5 of ls *, the rules allow it now",
    "5 of make *, a rule would allow what people rejected",
    "5 of npm publish *, with a risk, a warning, or without an “always” to choose: these are always asked",
    "3 of go run *, 5 are needed",
  ]);
  const read = reads.count;
  // The card of a request gets its rule, from what was read; one with a risk gets none.
  const [card] = asked("npm test more", ["npm", "test"], [4]);
  const [other] = asked("npm test more", ["npm", "test"], [4], true, { risks: [{ kind: RiskKind.DELETE }] });
  expect((await review.suggest(principal, 30, card?.request)).toml).toBe(toTry);
  expect((await review.suggest(principal, 30, other?.request)).rules ?? []).toEqual([]);
  expect((await review.suggest(principal, 30, asked("go vet x", ["go", "vet"], [4])[0]?.request)).rules).toEqual([]);
  expect(reads.count).toBe(read);

  const file = join(service.data, "suggested.toml");
  await writeFile(file, toTry);
  expect(await main(["check-config", file], { HOME: service.data })).toMatchObject({
    code: 0,
    stderr: expect.stringContaining("is good: 1 rule, 1 test passed"),
  });
});

function withCondition(when: string): string {
  return `[permission.bash]\n"*" = { action = "allow", when = "${when}" }\n`;
}

/** Simulates a candidate, and returns what would change and the summary. */
async function simulate(candidateToml: string) {
  const changes: PolicyChange[] = [];
  let summary: SimulationSummary | undefined;
  for await (const { kind } of connect(service, "approver").permissions.simulatePolicy({ candidateToml })) {
    if (kind.case === "change") changes.push(kind.value);
    if (kind.case === "summary") summary = kind.value;
  }
  return { changes, summary };
}

test("a candidate is tried on recorded calls: what people rejected comes first, and the rules in force change nothing", async () => {
  const [caller, person] = [connect(service, "caller"), connect(service, "approver")];
  const sessionId = await caller.newSession();
  await writeFile(join(service.workspace, "list.txt"), "a\n");
  const call = async (callId: string, tool: string, input: JsonObject, reply?: PermissionReply) => {
    for await (const { event } of caller.tools.executeTool({ sessionId, callId, tool, input })) {
      if (event?.event.case !== "permissionAsked" || reply === undefined) continue;
      await person.permissions.respondToPermission({ sessionId, permissionId: event.event.value.id, reply });
    }
  };
  await call("listed", "bash", { command: "ls *.txt" });
  for (const callId of ["read", "again"]) await call(callId, "read", { filePath: "list.txt" });
  await call("denied", "bash", { command: "git push origin" });
  await call("rejected", "bash", { command: "make all" }, PermissionReply.REJECT);
  await call("approved", "bash", { command: "sort list.txt > sorted.txt" }, PermissionReply.ONCE);
  const same = await simulate(settings);
  expect(same.changes).toEqual([]);
  expect(same.summary).toMatchObject({ decisions: 6, judged: 6, changed: 0, unfaithful: 0, notJudged: [], leftOut: 0 });
  const candidate = `[permission]\nread = "deny"\n[permission.bash]\n"*" = "allow"\n`;
  const { changes, summary } = await simulate(candidate);
  expect(
    changes.map(({ before, after, decisions, rejected, approved, examples }) => ({
      ...{ before, after, decisions, rejected, approved, examples },
    })),
  ).toEqual([
    { before: Action.ASK, after: Action.ALLOW, decisions: 1, rejected: 1, approved: 0, examples: ["make all"] },
    { before: Action.DENY, after: Action.ALLOW, decisions: 1, rejected: 0, approved: 0, examples: ["git push origin"] },
    { before: Action.ALLOW, after: Action.DENY, decisions: 2, rejected: 0, approved: 0, examples: ["list.txt"] },
    { before: Action.ASK, after: Action.DENY, decisions: 1, rejected: 0, approved: 1, examples: ["list.txt"] },
  ]);
  expect(summary).toMatchObject({ judged: 6, changed: 5, widened: 2, asksSaved: 2, asksAdded: 0, unfaithful: 0 });
  // A condition on the input is judged by that of the stored call.
  const typed = await simulate(
    `${settings}[permission.read]\n"*" = { action = "deny", when = "!has(input.offset)" }\n`,
  );
  expect(typed.summary).toMatchObject({ judged: 6, changed: 3, notJudged: [], unfaithful: 0 });
  const file = join(service.data, "next.toml");
  const environment = { HOME: service.data, TOOLGATE_URL: service.url, TOOLGATE_TOKEN: "approver-token-for-tests" };
  // Only the rules are sent, in their order.
  await writeFile(file, `listen = "127.0.0.1:1"\n[[token]]\nid = "x"\nsecret = "not to be sent"\n${candidate}`);
  expect(await main(["simulate", file, "--fail-on", "widen"], environment)).toMatchObject({
    code: 3,
    stdout: expect.stringMatching(/^ask → allow bash, agent build: once, people rejected 1 of them\n {4}make all\n/),
    stderr: expect.stringContaining(
      "6 of 6 decisions judged: 5 would change, 2 of them widen; 2 questions saved, 0 added",
    ),
  });
  await writeFile(file, settings);
  expect(await main(["simulate", file, "--fail-on", "widen"], environment)).toMatchObject({ code: 0, stdout: "" });
});

test("toolgate suggest says in one request what each approved command lacks", async () => {
  const [caller, person] = [connect(service, "caller"), connect(service, "approver")];
  const sessionId = await caller.newSession();
  for (const callId of ["first", "second"]) {
    for await (const { event } of caller.tools.executeTool({
      sessionId,
      callId,
      tool: "bash",
      input: { command: "hostname" },
    })) {
      if (event?.event.case !== "permissionAsked") continue;
      const permissionId = event.event.value.id;
      await person.permissions.respondToPermission({ sessionId, permissionId, reply: PermissionReply.ONCE });
    }
  }
  const environment = { TOOLGATE_URL: service.url, TOOLGATE_TOKEN: "watcher-token-for-tests" };
  const { stdout, stderr } = await toolgate(["suggest", "--days", "1"], environment);
  expect([stdout, stderr]).toEqual([
    "",
    expect.stringMatching(
      /requests of the last day were answered by people\nno rule: 2 approvals of bash "hostname.*" for agent build, 5 are needed\n/,
    ),
  ]);
});

test.each([
  ["that is no TOML", "[permission.bash\n", "POLICY_REFUSED", "line 1"],
  ["with other keys", '[[token]]\nid = "x"\n', "POLICY_REFUSED", 'unknown key "token"'],
  ["with half a condition", withCondition("!!"), "POLICY_REFUSED", "the condition ends too early"],
  ["with a deep condition", withCondition(`${"!".repeat(500)}contained`), "POLICY_REFUSED", "has over 64 parts"],
  ["with a deep table", `[permission]\nbash = ${"{a=".repeat(5_000)}1${"}".repeat(5_000)}\n`, "POLICY_REFUSED", ""],
  ["over 256 KiB", `#${"x".repeat(262_144)}`, "INVALID_MESSAGE", "candidate_toml"],
])("a candidate %s is refused with the reason, and the service goes on", async (_what, candidate, reason, why) => {
  expect(await refusal(simulate(candidate))).toMatchObject({ reason, message: expect.stringContaining(why) });
  expect((await simulate("")).summary).toMatchObject({ unfaithful: 0 });
});

test("explain names file and line of each rule that a file has, through the command line too", async () => {
  await mkdir(join(service.workspace, "shop/.opencode"), { recursive: true });
  const policyFile = '[agent.plan]\npermission.edit."plans/x*" = "deny"\n[permission]\nedit = "ask"\n';
  await writeFile(join(service.workspace, "shop/.opencode/config.toml"), policyFile);
  const caller = connect(service, "caller");
  const parentSessionId = await caller.newSession({ agent: "plan", workspace: "default/shop" });
  const sessionId = await caller.newSession({ parentSessionId, agent: "plan" });
  const places = async (permission: string, pattern: string) => {
    const { decisions } = await caller.permissions.explainPermission({ sessionId, permission, patterns: [pattern] });
    return decisions.flatMap(({ matches }) => matches.map(({ layer, place }) => [layer, place]));
  };
  const [bashLine, planLine] = ['"git push *"', '"plans/*"'].map(
    (text) =>
      readFileSync(service.config, "utf8")
        .split("\n")
        .findIndex((line) => line.startsWith(text)) + 1,
  );
  expect(await places("bash", "git push origin")).toContainEqual([Layer.CONFIG, `${service.config}:${bashLine}`]);
  expect(await places("edit", "plans/x.md")).toEqual([
    [Layer.AGENT, `${service.config}:${planLine}`],
    [Layer.AGENT_LIMITS, ""],
    [Layer.AGENT_LIMITS, `${service.config}:${planLine}`],
    [Layer.WORKSPACE, "shop/.opencode/config.toml:4"],
    [Layer.WORKSPACE, "shop/.opencode/config.toml:2"],
    [Layer.INHERITED, ""],
    [Layer.INHERITED, `${service.config}:${planLine}`],
  ]);
  const environment = { TOOLGATE_URL: service.url, TOOLGATE_TOKEN: "approver-token-for-tests" };
  expect((await toolgate(["explain", "bash", "git push origin"], environment)).stdout).toContain(
    `→ config ${service.config}:${bashLine}  bash "git push *" deny`,
  );
});

test("a policy file of the workspace is listed as it is now, and if it is broken with what is wrong", async () => {
  const { permissions } = connect(service, "watcher");
  const files = async (workspace: string) => {
    const { lists } = await permissions.listRules({ place: { case: "workspace", value: workspace } });
    return lists.filter(({ layer }) => layer === Layer.WORKSPACE);
  };
  await mkdir(join(service.workspace, "app/.opencode"), { recursive: true });
  const file = join(service.workspace, "app/.opencode/config.toml");
  await writeFile(file, '[permission]\nwebfetch = "deny"\n');
  expect(await files("default")).toEqual([]);
  expect(await files("default/app")).toMatchObject([
    { source: "app/.opencode/config.toml", rules: [rule("webfetch", "*", Action.DENY)], problem: "" },
  ]);
  await writeFile(file, '[permission]\nwebfetch = "never"\n');
  expect(await files("default/app")).toMatchObject([
    { problem: expect.stringContaining("line 2: permission.webfetch") },
  ]);
});

test("a session that is not there, a workspace and an agent that are not configured are refused", async () => {
  const { permissions } = connect(service, "approver");
  const reasonOf = async (request: Parameters<typeof permissions.listRules>[0]) =>
    (await refusal(permissions.listRules(request))).reason;
  expect(await reasonOf({ place: { case: "sessionId", value: "ses_none" } })).toBe("NO_SUCH_SESSION");
  expect(await reasonOf({ place: { case: "workspace", value: "elsewhere" } })).toBe("UNKNOWN_WORKSPACE");
  expect(await reasonOf({ agent: "nobody" })).toBe("UNKNOWN_AGENT");
});
