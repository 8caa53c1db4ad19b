import { existsSync, mkdirSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { create } from "@bufbuild/protobuf";
import { afterEach, beforeAll, describe, expect, test, vi } from "vitest";
import { AgentService } from "../../gen/opencode/tool/v1/agent_service_pb.ts";
import { type Session, SessionSchema } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import {
  PermissionReply,
  type PermissionRequest,
  ToolErrorReason,
  type ToolPart,
} from "../../gen/opencode/tool/v1/tool_pb.ts";
import { mayAccess } from "../../src/call/sessions.ts";
import type { Principal } from "../../src/core/principal.ts";
import { proxyVariables } from "../../src/sandbox/network/session-networks.ts";
import { clientOf, connect } from "../e2e/clients.ts";
import { startService, useService } from "../e2e/service.ts";
import { processesNamed, untilDead } from "../tools/processes.ts";
import type { AcpStep } from "./fake-acp-agent.ts";

const program = join(import.meta.dirname, "fake-acp-agent.ts");
/** The checkout may lie below the temporary directory, of which programs see only what is named. */
const sandbox = `[sandbox]\nwritable = [${JSON.stringify(join(import.meta.dirname, "../.."))}]\n`;

/** A runner whose agent is named like it. */
function runner(name: string, more = "", args: readonly string[] = []): string {
  const command = JSON.stringify(process.execPath);
  const words = JSON.stringify([program, ...args]);
  const table = more.includes("command") ? "" : `command = ${command}\nargs = ${words}\n`;
  return `[agent.${name}]\n[agent_runner.${name}]\n${table}agents = ["${name}"]\n${more}\n`;
}

const service = useService({
  env: { FAKE_KEY: "key-of-the-fake-agent", FAKE_OTHER: "x" },
  settings: [
    sandbox,
    '[permission]\n"task" = "allow"\n[permission.bash]\n"touch free*" = "allow"\n"rm *" = "deny"\n',
    runner("fake", 'env = ["FAKE_KEY"]\n'),
    runner("resuming", "", ["resumes"]),
    runner("below", 'cwd = "sub"\n'),
    runner("outside", 'cwd = "link"\n'),
    runner("old", "", ["protocol-2"]),
    runner("plain", "", ["no-http"]),
    runner("missing", 'command = "no-such-agent"\n'),
  ].join("\n"),
});
const inWorkspace = (name: string) => join(service.workspace, name);
const marker = () => inWorkspace("marker");
beforeAll(() => {
  mkdirSync(inWorkspace("sub"));
  symlinkSync("/tmp", inWorkspace("link"));
});
afterEach(() => rmSync(marker(), { force: true }));

const [caller, approver, reader] = [
  () => connect(service, "caller"),
  () => connect(service, "approver"),
  () => connect(service, "watcher"),
];

/** Starts a task of an agent that does these steps. */
async function start(steps: readonly AcpStep[], { agent = "fake", sessionId = "", session = "" } = {}) {
  const clients = caller();
  const parent = sessionId || (await clients.newSession());
  const input = {
    description: "x",
    prompt: JSON.stringify(steps),
    agent,
    ...(session !== "" && { session_id: session }),
  };
  const callId = `t${Math.random().toString(36).slice(2)}`;
  const ended = clients.tools.callTool({ sessionId: parent, callId, tool: "task", waitMs: 60_000, input });
  return { parent, callId, ended: ended.then(({ part }) => part as ToolPart) };
}

const run = async (...task: Parameters<typeof start>) => await (await start(...task)).ended;

const textOf = ({ state }: ToolPart) =>
  state.case === "completed" ? state.value.output : state.case === "error" ? state.value.error : "";
/** Outcome of the steps. */
const resultsOf = (part: ToolPart) =>
  JSON.parse(
    /^\[.*\]$/m.exec(textOf(part).replaceAll(/\[Toolgate:.*/g, ""))?.[0] ?? JSON.stringify([textOf(part)]),
  ) as unknown[];
const callsOf = async ({ childSessionId: sessionId }: ToolPart) =>
  (await reader().tools.listToolParts({ sessionId })).parts;

/** Waits for the open request of a task's session tree. */
async function asked({ parent }: { parent: string }): Promise<PermissionRequest> {
  for await (const { event } of approver().permissions.watchPermissions({})) {
    if (event?.event.case !== "permissionAsked") continue;
    const request = event.event.value;
    const { session } = await reader().sessions.getSession({ sessionId: request.sessionId });
    if (session?.rootSessionId === parent) return request;
  }
  throw new Error("the watch ended");
}

async function answer(task: { parent: string }, reply: PermissionReply, more: object = {}) {
  const request = await asked(task);
  const { id: permissionId, sessionId } = request;
  await approver().permissions.respondToPermission({ permissionId, sessionId, reply, ...more });
  return request;
}

const options = [
  { optionId: "forever", name: "Always", kind: "allow_always" },
  { optionId: "allow", name: "Once", kind: "allow_once" },
  { optionId: "no", name: "No", kind: "reject_once" },
];
const use = (command: string, more: object = {}) => ({
  toolCall: { toolCallId: "c1", title: command, kind: "execute", rawInput: { command }, ...more },
  options,
});
const done = (more: object = {}) => ({
  sessionUpdate: "tool_call_update",
  toolCallId: "c1",
  status: "completed",
  rawOutput: { output: "made it", metadata: { exit: 0 } },
  content: [{ type: "content", content: { type: "text", text: "made it" } }],
  ...more,
});
const touch = (): AcpStep[] => [{ do: "ask", params: use("touch marker"), marker: marker(), result: done() }];

describe("a permission request", () => {
  test("that is approved selects the option for once, never the one for always, and the result is recorded", async () => {
    const task = await start(touch());
    await answer(task, PermissionReply.ONCE);
    const ended = await task.ended;
    expect(resultsOf(ended)).toEqual(["allow"]);
    expect(existsSync(marker())).toBe(true);
    expect(await callsOf(ended)).toMatchObject([
      {
        tool: "acp:execute",
        agent: "fake",
        reportedBy: "caller",
        state: { case: "completed", value: { output: "made it", metadata: { exit: 0 } } },
      },
    ]);
    expect(textOf(ended)).toContain(
      "1 uses of the agent's own tools asked here; none that it reported ran without asking",
    );
  });

  test("that is rejected selects a rejecting option, and nothing runs", async () => {
    const task = await start(touch());
    await answer(task, PermissionReply.REJECT);
    const ended = await task.ended;
    expect(resultsOf(ended)).toEqual(["no"]);
    expect(existsSync(marker())).toBe(false);
    expect(textOf(ended)).toContain("of which 1 were refused (execute)");
  });

  test("whose input is edited is refused, since the agent would run the other one", async () => {
    const task = await start(touch());
    const input = { title: "touch other", rawInput: { command: "touch free-other" } };
    await answer(task, PermissionReply.ONCE, { input });
    const ended = await task.ended;
    expect(resultsOf(ended)).toEqual(["no"]);
    expect(existsSync(marker())).toBe(false);
    expect(textOf((await callsOf(ended))[0] as ToolPart)).toContain("cannot run an edited input");
  });

  test("is judged by rules for what it holds, and shows what earlier updates said", async () => {
    const known = { sessionUpdate: "tool_call", toolCallId: "c1", title: "shell", kind: "execute" };
    const bare = { toolCall: { toolCallId: "c1" }, options };
    const task = await start([
      { do: "ask", params: use("touch free") },
      { do: "ask", params: use("rm -rf free", { toolCallId: "c2" }) },
      { do: "update", update: { ...known, rawInput: { command: "touch other", cwd: inWorkspace("sub") } } },
      { do: "ask", params: bare },
    ]);
    const request = await answer(task, PermissionReply.ONCE);
    expect(request).toMatchObject({ permission: "bash", patterns: ["touch other"], preview: { paths: ["sub"] } });
    expect(resultsOf(await task.ended)).toEqual(["allow", "no", "allow"]);
  });

  test("without input shows its title and content, and no answer to it is saved", async () => {
    const content = [{ type: "content", content: { type: "text", text: "Reads the notes." } }];
    const toolCall = { toolCallId: "c1", title: "Read notes", kind: "read", content };
    const task = await start([{ do: "ask", params: { toolCall, options } }]);
    const request = await answer(task, PermissionReply.REJECT);
    expect(request).toMatchObject({ permission: "acp:read", offers: [] });
    expect(request.patterns.join()).toMatch(/Reads the notes.*Read notes/);
    expect(resultsOf(await task.ended)).toEqual(["no"]);
  });

  test("gets only an option that means exactly this use, although a rule allows it", async () => {
    const of = (...kinds: [optionId: string, kind: string][]) =>
      kinds.map(([optionId, kind]) => ({ optionId, name: "", kind }));
    const offers = [
      of(["a", "allow_always"], ["r", "reject_always"]),
      of(["a", "allow_once"], ["a", "allow_always"], ["r", "reject_once"]),
      of(["a", "allow_forever"], ["x", "reject_hard"], ["r", "reject_once"]),
      of(["r", "reject_once"], ["b", "reject_always"], ["a", "allow_once"]),
      of(["x", "allow_always"], ["x", "reject_once"], ["r", "reject_always"]),
    ];
    const steps = offers.map((each): AcpStep => ({ do: "ask", params: { ...use("touch free"), options: each } }));
    const malformed: AcpStep = { do: "request", method: "session/request_permission", params: { options: [] } };
    expect(resultsOf(await run([...steps, malformed]))).toEqual(["r", "r", "r", "a", "r", -32_602]);
  });

  test("without a way to refuse is cancelled, and so is the turn", async () => {
    const only = { ...use("rm x"), options: options.slice(0, 2) };
    const ended = await run([{ do: "ask", params: only, marker: marker() }, { do: "hang" }]);
    expect(ended.state.value).toMatchObject({ reason: ToolErrorReason.FAILED });
    expect(textOf(ended)).toContain("it offered no way to refuse one of its requests");
    expect(existsSync(marker())).toBe(false);
  });

  test("that the agent withdraws is closed while the agent goes on", async () => {
    const task = await start([{ do: "withdraw", params: use("touch marker"), afterMs: 1_500 }, { do: "hang" }]);
    const { id: permissionId } = await asked(task);
    const { permissions, tools } = approver();
    await vi.waitUntil(async () => (await permissions.getPermission({ permissionId })).settled, { timeout: 60_000 });
    const { part } = await tools.getToolPart({ sessionId: task.parent, callId: task.callId });
    expect(part?.state.case).toBe("running");
    await caller().tools.cancelTool({ sessionId: task.parent, callId: task.callId });
    await task.ended;
  });
});

test("an agent that runs another input than the approved one raises the alert of hosts", async () => {
  const other = done({ rawInput: { command: "touch free /etc/x" } });
  const ended = await run([{ do: "ask", params: use("touch free"), result: other }]);
  expect((await callsOf(ended))[0]?.state.value).toMatchObject({ reason: ToolErrorReason.CHANGED_AFTER_APPROVAL });
});

test("a use that the agent does not report ends with the run", async () => {
  const ended = await run([{ do: "ask", params: use("touch free") }]);
  expect(textOf((await callsOf(ended))[0] as ToolPart)).toContain("without reporting the outcome");
});

test("what ran without asking is in the result", async () => {
  const update = (id: string, kind: string, title: string) =>
    [
      { sessionUpdate: "tool_call", toolCallId: id, kind, title },
      { sessionUpdate: "tool_call_update", toolCallId: id, status: "completed" },
    ].map((each): AcpStep => ({ do: "update", update: each }));
  const steps = [...update("a", "read", "x"), ...update("b", "read", "y"), ...update("c", "other", "toolgate_glob")];
  expect(textOf(await run(steps))).toContain("ran without asking: read ×2.");
});

test("the client announces no files and no terminal, and serves none", async () => {
  const path = marker();
  const ended = await run([
    { do: "request", method: "fs/write_text_file", params: { path, content: "x" } },
    { do: "request", method: "fs/read_text_file", params: { path: "/etc/hostname" } },
    { do: "request", method: "terminal/create", params: { command: `touch ${path}` } },
  ]);
  expect(resultsOf(ended)).toEqual([-32_601, -32_601, -32_601]);
  expect(existsSync(path)).toBe(false);
});

test("the program reads and changes only what rules allow without an ask, whatever an approver would allow", async () => {
  writeFileSync(inWorkspace(".env"), "secret\n");
  writeFileSync(inWorkspace("plain.txt"), "plain\n");
  // Programs of earlier tests are still ending: while one runs, an empty directory keeps others from making this one.
  await vi.waitFor(() => expect(existsSync(inWorkspace(".vscode"))).toBe(false), { timeout: 60_000 });
  mkdirSync(inWorkspace(".vscode"));
  writeFileSync(inWorkspace(".vscode/settings.json"), "{}");
  const ended = await run([
    { do: "open", path: ".env" },
    { do: "open", path: "plain.txt", append: "more\n" },
    { do: "open", path: ".vscode/settings.json", append: "X" },
    { do: "open", path: ".vscode/settings.json" },
  ]);
  expect(resultsOf(ended)).toEqual(["EACCES", "plain\nmore\n", "EROFS", "{}"]);
  for (const name of [".env", "plain.txt", ".vscode"]) rmSync(inWorkspace(name), { recursive: true });
});

test("the program sees the variables that the configuration names, and works where it says", async () => {
  const [env] = resultsOf(await run([{ do: "look", at: "env" }]));
  // The sandbox adds PWD.
  const names = (env as string[]).filter((name) => name !== "PWD");
  const own = names.filter((name: string) => !(name in proxyVariables));
  expect(own).toEqual(["FAKE_KEY", "HOME", "PATH", "TOOLGATE_CALL", "TOOLGATE_REPLICA"]);
  expect(resultsOf(await run([{ do: "look", at: "cwd" }], { agent: "below" }))).toEqual([inWorkspace("sub")]);
  expect(textOf(await run([], { agent: "outside" }))).toContain("leads out of the workspace");
});

describe("the token of a run", () => {
  const list = { jsonrpc: "2.0", id: 1, method: "tools/list", params: {} };
  const glob = { jsonrpc: "2.0", id: 2, method: "tools/call", params: { name: "glob", arguments: { pattern: "*" } } };

  test("opens the tools of Toolgate in the child session, and nothing else", async () => {
    const ended = await run([
      { do: "fetch", path: ".", body: list },
      { do: "fetch", path: "../mcp/ses_of_another", body: glob },
      { do: "fetch", path: "/opencode.tool.v1.SessionService/ListSessions", body: {} },
      { do: "fetch", path: "/opencode.tool.v1.ToolService/CallTool", body: {} },
    ]);
    const results = resultsOf(ended) as [number, string][];
    expect(results.map(([status]) => status)).toEqual([200, 200, 401, 401]);
    expect(results[0]?.[1]).toContain('"glob"');
    expect((await callsOf(ended)).map(({ tool, agent }) => [tool, agent])).toEqual([["glob", "fake"]]);
  });

  test("is revoked at its end", async () => {
    const [authorization] = resultsOf(await run([{ do: "look", at: "token" }])) as [string];
    expect(authorization).toMatch(/^Bearer tg_/);
    const response = await fetch(`${service.url}/mcp`, { method: "POST", headers: { authorization }, body: "{}" });
    expect(response.status).toBe(401);
  });

  test("reaches one session of those that its principal owns", () => {
    const [own, other] = ["ses_own", "ses_other"].map((id) => create(SessionSchema, { id, owner: "p" })) as [
      Session,
      Session,
    ];
    const rights = { roles: new Set(["caller"] as const), agents: ["*"], workspaces: ["*"], answersOwn: false };
    const principal: Principal = { id: "p", ...rights, lineage: ["p"], session: "ses_own" };
    expect(mayAccess(principal, own, "call")).toBe(true);
    for (const access of ["read", "call", "control"] as const) expect(mayAccess(principal, other, access)).toBe(false);
  });
});

describe("a run fails with the reason", () => {
  test.each<[string, readonly AcpStep[], string, string?]>([
    ["the program dies", [{ do: "die" }], "its program ended before its turn did"],
    ["the program exits", [{ do: "exit" }], "exit code 3"],
    [
      "tokens run out",
      [
        { do: "say", text: "half of" },
        { do: "stop", reason: "max_tokens" },
      ],
      "limit of tokens of its model. Its last text: half of",
    ],
    ["the agent refuses", [{ do: "stop", reason: "refusal" }], "it refused the task"],
    ["the agent cancels", [{ do: "stop", reason: "cancelled" }], "it cancelled its turn"],
    ["the end is of an unknown kind", [{ do: "stop", reason: "tired" }], 'its turn ended with "tired"'],
    [
      "a line is huge",
      [
        { do: "print", text: "x", width: 1_048_576, times: 1 },
        { do: "print", text: "y", width: 9_000_000, times: 1 },
      ],
      "a line of more than 8388608 bytes",
    ],
    [
      "other lines flood",
      [{ do: "print", text: "noise", times: 1_001 }, { do: "hang" }],
      "more than 1000 lines that are no messages",
    ],
    [
      "unknown responses flood",
      [{ do: "print", text: '{"jsonrpc":"2.0","id":77,"result":{}}', times: 1_001 }, { do: "hang" }],
      "more than 1000 lines",
    ],
    [
      "requests flood",
      [
        {
          do: "print",
          text: '{"jsonrpc":"2.0","id":"r","method":"session/request_permission","params":{}}',
          times: 100_000,
        },
        { do: "hang" },
      ],
      "failed",
    ],
    ["the protocol is another", [], "it speaks version 2 of the protocol", "old"],
    ["the program is not installed", [], "its program no-such-agent is not installed", "missing"],
  ])("%s", async (_what, steps, reason, agent = "fake") => {
    const ended = await run(steps, { agent });
    expect(ended.state.value).toMatchObject({ reason: ToolErrorReason.FAILED });
    expect(textOf(ended)).toContain(reason);
  });

  test("and with what the program printed, without its keys", async () => {
    const text = textOf(await run([{ do: "complain", text: "bad key key-of-the-fake-agent" }, { do: "exit" }]));
    expect(text).toContain("bad key [redacted]");
  });
});

test("stray lines do not end a run", async () => {
  expect(
    resultsOf(
      await run([
        { do: "print", text: "Welcome!", times: 20 },
        { do: "ask", params: use("touch free") },
      ]),
    ),
  ).toEqual(["allow"]);
});

/** The process that the step "spawn" leaves. */
const sleeper = "sleep\u00000600.25";

test("a request that no one answers in time is refused", async () => {
  const impatient = await startService({
    settings: `ask_ms = 1000\n${sandbox}[permission]\n"task" = "allow"\n${runner("fake")}`,
  });
  const clients = connect(impatient, "caller");
  const input = { description: "x", prompt: JSON.stringify(touch()), agent: "fake" };
  const sessionId = await clients.newSession();
  const { part } = await clients.tools.callTool({ sessionId, callId: "t1", tool: "task", waitMs: 60_000, input });
  expect(resultsOf(part as ToolPart)).toEqual(["no"]);
  expect(existsSync(marker())).toBe(false);
});

test("the cancel of a task ends the program with all of its processes", async () => {
  const task = await start([{ do: "spawn" }, { do: "ask", params: use("touch marker") }]);
  await asked(task);
  const [child = 0] = await processesNamed(sleeper);
  expect(child).toBeGreaterThan(0);
  const { tools } = caller();
  await tools.cancelTool({ sessionId: task.parent, callId: task.callId });
  const ended = await task.ended;
  expect(ended.state.value).toMatchObject({ reason: ToolErrorReason.CANCELLED });
  await untilDead(child);
  const { permissions } = await approver().permissions.listPermissions({ sessionId: task.parent });
  expect(permissions).toEqual([]);
});

test("an agent without MCP over HTTP works without our tools, and the result says so", async () => {
  expect(textOf(await run([{ do: "fetch", path: ".", body: {} }], { agent: "plain" }))).toMatch(
    /no server.*its own tools were not offered/s,
  );
});

test("a later task continues the conversation where the agent can", async () => {
  const first = await start([{ do: "say", text: "one" }], { agent: "resuming" });
  const { childSessionId: session } = await first.ended;
  const again = { agent: "resuming", sessionId: first.parent, session };
  expect(textOf(await run([{ do: "say", text: "two" }], again))).toContain("two");
  const other = await start([], {});
  const child = (await other.ended).childSessionId;
  expect(textOf(await run([], { sessionId: other.parent, session: child }))).toContain(
    "it cannot continue an earlier conversation",
  );
});

test("ListAgents names the runner of an agent, and what it may do without asking", async () => {
  const { agents } = await clientOf(AgentService, service.url, "caller-token-for-tests").listAgents({});
  const [own] = agents.find(({ name }) => name === "fake")?.runners ?? [];
  expect(own).toMatchObject({ name: "acp:fake", freeCapacity: 8 });
  expect(own?.bypasses).toMatch(
    /neither judged nor recorded.*in the sandbox profile workspace-write, with access to the hosts that the rules for webfetch allow/,
  );
});
