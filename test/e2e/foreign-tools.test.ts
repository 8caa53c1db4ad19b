import { createHash } from "node:crypto";
import { link, mkdir, symlink, writeFile } from "node:fs/promises";
import { join } from "node:path";
import type { JsonObject } from "@bufbuild/protobuf";
import { ConnectError } from "@connectrpc/connect";
import { expect, test } from "vitest";
import { PermissionAction } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { PermissionService } from "../../gen/opencode/tool/v1/permission_service_pb.ts";
import { SessionService } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import { PermissionReply, type PermissionRequest, ToolErrorReason } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { Waiting } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { canonicalJson } from "../../src/core/json.ts";
import { clientOf, connect, refusal } from "./clients.ts";
import { answerFirst, hostOf, hostTokens } from "./host.ts";
import { startService, useService } from "./service.ts";

const service = useService({
  settings: [
    "[limits]\nrunning_calls = 2\n",
    '[permission.bash]\n"echo *" = "allow"\n"cat *" = "allow"\n"rm *" = "deny"\n',
    '[permission.read]\n"secret/*" = "deny"\n',
    '[permission.edit]\n"notes/*" = "allow"\n',
    '[permission.webfetch]\n"https://example.org/*" = "allow"\n',
    '[permission.task]\n"reviewer" = "allow"\n',
    hostTokens,
  ].join("\n"),
});
const approver = () => clientOf(PermissionService, service.url, "approver-token-for-tests");
let sessions = 0;
const host = () => hostOf(service, `foreign-${++sessions}`);
const inWorkspace = (name: string) => join(service.workspace, name);

/** The pattern of a use of an ACP agent that is judged as a whole. */
const asPattern = (rawInput: JsonObject) =>
  canonicalJson({ title: "x", rawInput, locations: [], changes: [], content: [] });

/** Plans a use of an agent's tool as PlanTool does, without a session. */
const planned = (kind: string, tool: string, input: JsonObject) =>
  connect(service, "caller").tools.planTool({ tool: `${kind}:${tool}`, input });

/** The parts of a request that do not depend on its session. */
const shownOf = ({ permission, patterns, preview, digest }: PermissionRequest) => ({
  ...{ permission, patterns, preview, digest },
});

/** Returns what a waiting call asks for. */
const askedBy = ({ permissions }: Waiting) => permissions.map(({ permission, patterns }) => [permission, ...patterns]);

test.each<[kind: string, tool: string, input: JsonObject, ...asks: string[][]]>([
  ["claude", "Bash", { command: "make && git push" }, ["bash", "make", "git push"]],
  ["claude", "Bash", { command: "cat .env" }, ["read", ".env"]],
  ["claude", "Bash", { command: "echo x > a.txt" }, ["edit", "a.txt"]],
  ["claude", "Read", { file_path: ".env" }, ["read", ".env"]],
  ["claude", "Read", { file_path: "/etc/hosts" }, ["external_directory", "/etc/*"]],
  ["claude", "Edit", { file_path: "a.txt", old_string: "a", new_string: "b" }, ["edit", "a.txt"]],
  ["claude", "MultiEdit", { file_path: "a.txt", edits: [{ old_string: "a", new_string: "b" }] }, ["edit", "a.txt"]],
  ["claude", "Write", { file_path: "a.txt", content: "b" }, ["edit", "a.txt"]],
  ["claude", "NotebookEdit", { notebook_path: "n.ipynb", new_source: "1" }, ["edit", "n.ipynb"]],
  ["claude", "Glob", { pattern: "*", path: "/etc" }, ["external_directory", "/etc/*"]],
  ["claude", "WebFetch", { url: "https://example.com", prompt: "?" }, ["webfetch", "https://example.com/"]],
  ["claude", "WebSearch", { query: "toolgate" }, ["websearch", "toolgate"]],
  ["claude", "Agent", { subagent_type: "writer", prompt: "Write." }, ["task", "writer"]],
  ["claude", "Task", { description: "x", prompt: "Write." }, ["task", "general-purpose"]],
  ["claude", "mcp__github__create_issue", { title: "x" }, ["github_create_issue", '{"title":"x"}']],
  ["claude", "mcp__todoist__add", { title: "x" }, ["claude:mcp__todoist__add", '{"title":"x"}']],
  ["claude", "mcp__external__directory", {}, ["claude:mcp__external__directory", "{}"]],
  ["claude", "Monitor", { pid: 1 }, ["claude:Monitor", '{"pid":1}']],
  ["goose", "Bash", { command: "echo hi" }, ["goose:Bash", '{"command":"echo hi"}']],
  ["codex", "Bash", { command: "make && git push" }, ["bash", "make", "git push"]],
  ["codex", "Bash", { command: "apply_patch 'x'" }, ["bash", "apply_patch x"]],
  ["codex", "view_image", { path: ".env" }, ["read", ".env"]],
  ["codex", "write_stdin", { session_id: 1 }, ["codex:write_stdin", '{"session_id":1}']],
  [
    "gemini",
    "run_shell_command",
    { command: "make", dir_path: "/tmp" },
    ["external_directory", "/tmp/*"],
    ["bash", "make"],
  ],
  ["gemini", "read_file", { file_path: ".env" }, ["read", ".env"]],
  ["gemini", "replace", { file_path: "a.txt", old_string: "a", new_string: "b" }, ["edit", "a.txt"]],
  ["gemini", "write_file", { file_path: "a.txt", content: "b" }, ["edit", "a.txt"]],
  ["gemini", "list_directory", { dir_path: "/etc" }, ["external_directory", "/etc/*"]],
  ["gemini", "web_fetch", { prompt: "x" }, ["gemini:web_fetch", '{"prompt":"x"}']],
  ["gemini", "invoke_agent", { agent_name: "writer", prompt: "Write." }, ["task", "writer"]],
  ["copilot", "bash", { command: "make && git push" }, ["bash", "make", "git push"]],
  ["copilot", "view", { path: ".env" }, ["read", ".env"]],
  ["copilot", "create", { path: "a.txt", file_text: "b" }, ["edit", "a.txt"]],
  ["copilot", "edit", { path: "a.txt", old_str: "a", new_str: "b" }, ["edit", "a.txt"]],
  ["opencode", "bash", { command: "make", workdir: "/tmp" }, ["external_directory", "/tmp/*"], ["bash", "make"]],
  ["opencode", "read", { filePath: ".env" }, ["read", ".env"]],
  ["opencode", "edit", { filePath: "a.txt", oldString: "a", newString: "b" }, ["edit", "a.txt"]],
  ["opencode", "write", { filePath: "a.txt", content: "b" }, ["edit", "a.txt"]],
  [
    "opencode",
    "patch",
    { patchText: "*** Begin Patch\n*** Add File: a.txt\n+a\n*** Delete File: b.txt\n*** End Patch" },
    ["edit", "a.txt", "b.txt"],
  ],
  ["opencode", "list", { path: "/etc" }, ["external_directory", "/etc/*"]],
  ["opencode", "task", { subagent_type: "writer" }, ["task", "writer"]],
  ["opencode", "github_create_issue", { title: "x" }, ["opencode:github_create_issue", '{"title":"x"}']],
  [
    "acp",
    "execute",
    { title: "make", rawInput: { command: "make", cwd: "/tmp" } },
    ["external_directory", "/tmp/*"],
    ["bash", "make"],
  ],
  ["acp", "execute", { title: "push", rawInput: { command: ["bash", "-lc", "git push"] } }, ["bash", "git push"]],
  ["acp", "execute", { title: "x", rawInput: { command: ["git", "log", "a b"] } }, ["bash", "git log 'a b'"]],
  ["acp", "execute", { title: "x", rawInput: { script: "make" } }, ["acp:execute", asPattern({ script: "make" })]],
  ["acp", "read", { title: ".env", rawInput: { filePath: ".env" } }, ["read", ".env"]],
  ["acp", "edit", { title: "a", changes: [{ path: "a.txt", newText: "b" }] }, ["edit", "a.txt"]],
  [
    "acp",
    "edit",
    { title: "a", rawInput: { file_path: "a.txt" }, locations: ["a.txt", "b.txt"] },
    ["edit", "a.txt", "b.txt"],
  ],
  ["acp", "delete", { title: "a", rawInput: { path: "a.txt" } }, ["edit", "a.txt"]],
  ["acp", "move", { title: "a", locations: ["a.txt"], rawInput: { path: "a.txt" } }, ["edit", "a.txt"]],
  ["acp", "fetch", { title: "x", rawInput: { url: "https://example.com" } }, ["webfetch", "https://example.com/"]],
  ["acp", "fetch", { title: "x", rawInput: { query: "toolgate" } }, ["websearch", "toolgate"]],
  ["acp", "switch_mode", { title: "x", rawInput: { to: "b" } }, ["acp:switch_mode", asPattern({ to: "b" })]],
  ["acp", "other", { title: "x", rawInput: { a: 1 } }, ["acp:other", asPattern({ a: 1 })]],
])("%s %s %o asks for the permissions of ours", async (kind, tool, input, ...asks) => {
  const waiting = await host().waiting(tool, input, { kind });
  expect(askedBy(waiting)).toEqual(expect.arrayContaining(asks));
  expect(askedBy(waiting)).toHaveLength(asks.length);
  const plan = await planned(kind, tool, input);
  expect(plan.asks.map(shownOf)).toEqual(waiting.permissions.map(shownOf));
});

test.each<[kind: string, tool: string, input: JsonObject]>([
  ["claude", "Bash", { command: "echo a && echo b" }],
  ["claude", "Read", { file_path: "missing.txt" }],
  ["claude", "Write", { file_path: "notes/new.md", content: "x" }],
  ["claude", "Glob", { pattern: "**/*.ts" }],
  ["claude", "Grep", { pattern: "needle", path: "notes" }],
  ["claude", "WebFetch", { url: "https://example.org/page" }],
  ["claude", "Agent", { subagent_type: "reviewer", prompt: "Review." }],
  ["claude", "Skill", { skill: "pdf" }],
  ["claude", "TodoWrite", { todos: [] }],
  ["opencode", "glob", { pattern: "*" }],
  ["opencode", "todowrite", { todos: [] }],
  ["acp", "execute", { title: "x", rawInput: { command: "echo a && echo b", description: "x" } }],
  ["acp", "read", { title: "x", rawInput: { filePath: "missing.txt", limit: 5 } }],
  ["acp", "edit", { title: "x", changes: [{ path: "notes/new.md", newText: "x" }] }],
  ["acp", "search", { title: "x", rawInput: { pattern: "needle", path: "notes" } }],
])("%s %s %o begins where a rule allows it", async (kind, tool, input) => {
  await mkdir(inWorkspace("notes"), { recursive: true });
  expect((await host().begun(tool, input, { kind })).input).toEqual(input);
  expect((await planned(kind, tool, input)).action).toBe(PermissionAction.ALLOW);
});

test.each<[tool: string, input: JsonObject, reason: ToolErrorReason]>([
  ["Bash", { command: "echo a; rm -rf /" }, ToolErrorReason.DENIED],
  ["Bash", { command: "cat secret/key" }, ToolErrorReason.DENIED],
  ["Read", { file_path: "secret/key" }, ToolErrorReason.DENIED],
  ["Bash", { cmd: "echo hi" }, ToolErrorReason.INVALID_INPUT],
  ["Read", { file_path: "~/x" }, ToolErrorReason.FAILED],
  ["WebFetch", { url: "http://169.254.169.254/" }, ToolErrorReason.DENIED],
])("claude %s %o is refused", async (tool, input, reason) => {
  expect(await host().refused(tool, input)).toMatchObject({ reason });
  const plan = await planned("claude", tool, input).catch((error: unknown) => ConnectError.from(error));
  if (plan instanceof ConnectError) expect(reason).toBe(ToolErrorReason.INVALID_INPUT);
  else if (reason === ToolErrorReason.DENIED) expect(plan.action).toBe(PermissionAction.DENY);
  else expect(plan.problem).toMatchObject({ reason });
});

test("the title of an agent's session is its directory, and does not repeat the kind of the agent", async () => {
  const [asked] = (await host().waiting("Monitor", {})).permissions;
  const sessions = clientOf(SessionService, service.url, "approver-token-for-tests");
  const { session } = await sessions.getSession({ sessionId: asked?.sessionId ?? "" });
  expect(session).toMatchObject({ title: "workspace", requester: { kind: "claude", place: service.workspace } });
});

test.each<[tool: string, input: JsonObject]>([
  ["read", { title: "Read notes.md" }],
  ["read", { title: "Read notes.md", locations: ["notes.md"], content: ["reads notes.md"] }],
  ["read", { title: "x", rawInput: { path: "notes.md", also: "/etc/passwd" } }],
  ["read", { title: "x", rawInput: { path: ["/etc/passwd"] }, locations: ["notes.md"] }],
  ["execute", { title: "echo hi" }],
  ["execute", { title: "x", rawInput: { command: "echo hi", env: { BASH_ENV: "x" } } }],
  ["edit", { title: "x", changes: [{ path: "notes/a", newText: "x" }], rawInput: { target: "/etc/passwd" } }],
  ["search", { title: "x", rawInput: { pattern: "../*" } }],
  ["fetch", { title: "x", rawInput: { url: "https://example.org/", open: true } }],
])("acp %s %o asks although rules allow its kind, and no answer is saved", async (tool, input) => {
  const { permissions } = await host().waiting(tool, input, { kind: "acp" });
  expect(permissions).not.toEqual([]);
  for (const { offers } of permissions) expect(offers).toEqual([]);
});

test("a change is shown as the difference that it makes to the real file, else as the pieces that it replaces", async () => {
  await writeFile(inWorkspace("diff.txt"), "one\ntwo\nthree\n");
  const edit = { file_path: "diff.txt", old_string: "two", new_string: "TWO" };
  const [edited] = (await host().waiting("Edit", edit)).permissions;
  expect(edited?.preview).toMatchObject({ diff: expect.stringContaining(" one\n-two\n+TWO\n three"), additions: 1 });
  const [missing] = (await host().waiting("Edit", { ...edit, old_string: "deux" })).permissions;
  expect(missing?.preview?.diff).toContain("-deux");
  const notebook = { nbformat: 4, cells: [{ id: "c1", cell_type: "code", source: ["old = 1"] }] };
  await writeFile(inWorkspace("n.ipynb"), JSON.stringify(notebook));
  const cell = { notebook_path: "n.ipynb", cell_id: "c1", new_source: "new = 2" };
  const [changed] = (await host().waiting("NotebookEdit", cell)).permissions;
  expect(changed?.preview?.diff).toMatch(/-old = 1\n.*\+new = 2/s);
});

test("a search asks to read the restricted files below its directory, which the agent's own search does not leave out", async () => {
  await mkdir(inWorkspace("deep/app"), { recursive: true });
  await writeFile(inWorkspace("deep/app/.env"), "KEY=1");
  await writeFile(inWorkspace("deep/app/main.ts"), "");
  expect(askedBy(await host().waiting("Grep", { pattern: "KEY", path: "deep" }))).toContainEqual([
    "read",
    "deep/app/.env",
  ]);
  await writeFile(inWorkspace("deep/.gitignore"), ".env\n");
  await host().begun("Grep", { pattern: "KEY", path: "deep" });
  // A filter of names also finds what git ignores.
  await host().waiting("Grep", { pattern: "KEY", path: "deep", glob: ".env" });
});

test("a relative path means the agent's directory, and a link its target", async () => {
  await mkdir(inWorkspace("sub/secret"), { recursive: true });
  await mkdir(inWorkspace("secret"), { recursive: true });
  await symlink(inWorkspace("secret"), inWorkspace("sub/open"));
  const cwd = inWorkspace("sub");
  const agent = host();
  await agent.begun("Read", { file_path: "secret/key" }, { cwd });
  expect(await agent.refused("Read", { file_path: "open/key" }, { cwd })).toMatchObject({
    reason: ToolErrorReason.DENIED,
  });
  expect(await agent.refused("Read", { file_path: "../secret/key" }, { cwd })).toMatchObject({
    reason: ToolErrorReason.DENIED,
  });
});

test("without a valid nonce file everything about files asks, and denied names stay denied", async () => {
  const agent = host();
  const session = `foreign-${sessions}`;
  const nonce = "0123456789abcdef".repeat(2);
  const path = inWorkspace(`.toolgate-nonce-${nonce}`);
  const contents = [
    "",
    createHash("sha256").update(`claude\nother\n${nonce}`).digest("hex"),
    `${createHash("sha256").update(`claude\n${session}\n${nonce}`).digest("hex")}\n`,
  ];
  for (const content of contents) {
    await writeFile(path, content);
    await agent.waiting("Read", { file_path: "a.txt", content }, { noncePath: path });
  }
  await agent.waiting("Read", { file_path: "b.txt" }, { noncePath: "" });
  await agent.waiting("Bash", { command: "echo hi" }, { noncePath: "" });
  await agent.waiting("Write", { file_path: "notes/x", content: "x" }, { noncePath: "" });
  expect(await agent.refused("Read", { file_path: "secret/key" }, { noncePath: "" })).toMatchObject({
    reason: ToolErrorReason.DENIED,
  });
  // What touches no file is judged as ever.
  await agent.begun("WebFetch", { url: "https://example.org/page" }, { noncePath: "" });
  // The valid file counts only in the agent's own directory, and not through a link.
  await writeFile(path, createHash("sha256").update(`claude\n${session}\n${nonce}`).digest("hex"));
  await mkdir(inWorkspace("sub"), { recursive: true });
  await agent.waiting("Read", { file_path: "c.txt" }, { noncePath: path, cwd: inWorkspace("sub") });
  const other = inWorkspace(`.toolgate-nonce-${"f".repeat(32)}`);
  const target = inWorkspace("nonce-of-the-link");
  await writeFile(
    target,
    createHash("sha256")
      .update(`claude\n${session}\n${"f".repeat(32)}`)
      .digest("hex"),
  );
  await symlink(target, other);
  await agent.waiting("Read", { file_path: "d.txt" }, { noncePath: other });
  await agent.begun("Read", { file_path: "e.txt" }, { noncePath: path });
});

test("protected files, hard links and repeated calls ask although rules allow", async () => {
  await mkdir(inWorkspace("notes"), { recursive: true });
  await writeFile(inWorkspace("plain.txt"), "x");
  await link(inWorkspace("plain.txt"), inWorkspace("notes/linked.txt")).catch(() => undefined);
  const agent = host();
  await agent.waiting("Write", { file_path: "notes/.git/hooks/pre-commit", content: "x" });
  await agent.waiting("Write", { file_path: "notes/linked.txt", content: "x" });
  const repeated = { command: "echo again" };
  await agent.begun("Bash", repeated, { foreignCallId: "r1" });
  await agent.begun("Bash", repeated, { foreignCallId: "r2" });
  expect(askedBy(await agent.waiting("Bash", repeated, { foreignCallId: "r3" }))).toEqual([
    ["doom_loop", "claude:Bash"],
  ]);
});

test("always saves a grant that covers the next calls of this tool, and no call of the local one", async () => {
  const agent = host();
  const waiting = await agent.waiting("Bash", { command: "make lint" });
  const [{ sessionId } = { sessionId: "" }] = waiting.permissions;
  const live = agent.begun("Bash", { command: "make lint" }, { waitMs: 20_000 });
  await answerFirst(approver(), waiting, { reply: PermissionReply.ALWAYS });
  await live;
  await agent.begun("Bash", { command: "make lint", description: "again" });
  const plan = await connect(service, "admin").tools.planTool({
    sessionId,
    tool: "bash",
    input: { command: "make lint" },
  });
  expect(plan.asks).toHaveLength(1);
});

test("a subagent has a child session, whose requests reach the log of its parent", async () => {
  const agent = host();
  const { sessionId: parent } = await agent.begun("Glob", { pattern: "*" });
  const own = await agent.begun("Glob", { pattern: "*" }, { foreignAgent: "reviewer" });
  const session = await sessionOf(own.sessionId);
  expect(session).toMatchObject({
    parentSessionId: parent,
    owner: "host",
    requester: { kind: "claude", place: service.workspace, subagent: "reviewer" },
  });
  const second = await agent.begun(
    "Glob",
    { pattern: "*" },
    {
      foreignSession: "child",
      foreignParent: `foreign-${sessions}`,
      foreignAgent: "writer",
    },
  );
  expect(await sessionOf(second.sessionId)).toMatchObject({ parentSessionId: parent });
  await agent.waiting("Bash", { command: "make" }, { foreignAgent: "reviewer" });
  const watched = connect(service, "watcher").permissions.listPermissions({ sessionId: parent });
  expect((await watched).permissions.map(({ sessionId }) => sessionId)).toContain(own.sessionId);
});

test("delegated calls are not limited by running_calls", async () => {
  const agent = host();
  for (const name of ["a", "b", "c", "d"]) await agent.begun("Read", { file_path: `${name}.txt` });
});

test("resume attaches to the call of a permission request, whatever the id of the use", async () => {
  const agent = host();
  const waiting = await agent.waiting("Bash", { command: "make" }, { foreignCallId: "c1" });
  const [{ id } = { id: "" }] = waiting.permissions;
  const again = await agent.waiting("Bash", { command: "make" }, { foreignCallId: "c2", resume: id });
  expect(again.permissions).toEqual(waiting.permissions);
  const wrong = agent.send("Bash", { command: "make all" }, { resume: id });
  expect(await refusal(wrong)).toMatchObject({ reason: "CALL_ID_REUSED" });
  const unknown = agent.send("Bash", { command: "make" }, { resume: "per_none" });
  expect(await refusal(unknown)).toMatchObject({ reason: "NO_SUCH_PERMISSION" });
});

test("uses without an id are one call while it waits, and another once it has begun or ended", async () => {
  const agent = host();
  const input = { command: "make" };
  const first = await agent.waiting("Bash", input);
  expect((await agent.waiting("Bash", input)).permissions).toEqual(first.permissions);
  const live = agent.begun("Bash", input, { waitMs: 20_000 });
  await answerFirst(approver(), first);
  const { callId } = await live;
  const second = await agent.waiting("Bash", input);
  expect(second.permissions[0]?.tool?.callId).not.toBe(callId);
  await answerFirst(approver(), second, { reply: PermissionReply.REJECT });
  expect((await agent.waiting("Bash", input)).permissions[0]?.tool?.callId).not.toBe(
    second.permissions[0]?.tool?.callId,
  );
});

test("permission requests expire after deadline_ms", async () => {
  const agent = host();
  const call = { foreignCallId: "c1", deadlineMs: 500 };
  const { permissions } = await agent.waiting("Bash", { command: "make" }, call);
  const [{ created, expires } = { created: 0, expires: 0 }] = permissions;
  expect(expires - created).toBeLessThanOrEqual(501);
  expect(await agent.refused("Bash", { command: "make" }, { ...call, waitMs: 20_000 })).toMatchObject({
    reason: ToolErrorReason.EXPIRED,
  });
});

test("a long report is bounded like any output, and one over 512 KiB is refused", async () => {
  const agent = host();
  const { assignment } = await agent.begun("Bash", { command: "echo hi" });
  const tooLong = { assignment, result: { case: "output", value: "x".repeat(524_289) } } as const;
  expect(await refusal(agent.tools.finishCall(tooLong))).toMatchObject({ reason: "INVALID_MESSAGE" });
  const whole = `${"x".repeat(99)}\n`.repeat(5_000);
  const { part } = await agent.tools.finishCall({ assignment, result: { case: "output", value: whole } });
  const state = part?.state.case === "completed" ? part.state.value : undefined;
  expect(state?.metadata).toMatchObject({ truncated: true, originalSize: whole.length });
  expect(state?.output.length).toBeLessThan(60_000);
  const output = String(state?.metadata?.outputPath);
  const read = await agent.tools.readToolOutput({ sessionId: part?.sessionId ?? "", output });
  expect(Number(read.totalBytes)).toBe(whole.length);
});

test("an unattended service denies at once what nobody would answer", async () => {
  const unattended = await startService({ settings: `unattended = "deny"\n${hostTokens}` });
  const agent = hostOf(unattended, "foreign");
  expect(await agent.refused("Bash", { command: "make" }, { waitMs: 20_000 })).toMatchObject({
    reason: ToolErrorReason.DENIED,
  });
  await agent.begun("Glob", { pattern: "*" });
});

test("a caller cannot run an agent's tool here", async () => {
  const caller = connect(service, "caller");
  const sessionId = await caller.newSession();
  const { part } = await caller.tools.callTool({
    sessionId,
    callId: "c1",
    tool: "claude:Bash",
    input: { command: "id" },
  });
  expect(part?.state.value).toMatchObject({ reason: ToolErrorReason.UNKNOWN_TOOL });
});

async function sessionOf(sessionId: string) {
  return (await clientOf(SessionService, service.url, "host-token-for-tests").getSession({ sessionId })).session;
}
