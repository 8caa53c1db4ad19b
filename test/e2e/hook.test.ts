import { spawn } from "node:child_process";
import { createHash } from "node:crypto";
import { once } from "node:events";
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { type AddressInfo, connect as connectTcp, createServer } from "node:net";
import { dirname, join } from "node:path";
import { text as textOf } from "node:stream/consumers";
import { afterAll, beforeAll, expect, onTestFinished, test } from "vitest";
import { PermissionService } from "../../gen/opencode/tool/v1/permission_service_pb.ts";
import { SessionService } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import { PermissionReply, type PermissionRequest, ToolErrorReason } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { ToolService } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { recordedClaudeHook } from "../hooks/recorded.ts";
import { programEntry } from "../main.ts";
import { clientOf } from "./clients.ts";
import { createHookHome } from "./hook-process.ts";
import { hostTokens } from "./host.ts";
import { createService } from "./service.ts";

const rules = '[permission.bash]\n"echo *" = "allow"\n"rm *" = "deny"\n';
const service = createService({ settings: `${rules}${hostTokens}` });
beforeAll(service.start);
afterAll(service.close);

const admin = "admin-token-for-tests";
let count = 0;

/** One session of Claude Code with a home of its user; changes of the recorded hooks are merged in. */
function claudeSession(server = service.url) {
  const home = createHookHome("host-token-for-tests");
  const session = { session_id: `claude-${++count}` };
  const flags = ["--server", server, "--token-file", home.tokenFile, "--uid", String(process.getuid?.())];
  const text = (event: string, tool: string, changes: object) => {
    const recorded = JSON.parse(recordedClaudeHook(service.workspace, event, tool).text);
    return JSON.stringify({ ...recorded, ...session, ...changes });
  };
  const hook = (event: string, tool: string, changes: object, more: readonly string[] = []) =>
    home.run(["claude", ...flags, ...more], text(event, tool, changes));
  const use = (command: string) => ({ tool_input: { command }, tool_use_id: `toolu_${++count}` });
  return { home, flags, text, hook, use };
}

/** Waits for the open request of a command. */
async function openRequest(command: string): Promise<PermissionRequest> {
  for await (const { event } of clientOf(PermissionService, service.url, admin).watchPermissions({})) {
    const found = event?.event.case === "permissionAsked" ? event.event.value : undefined;
    if (found?.patterns.some((pattern) => pattern.includes(command))) return found;
  }
  throw new Error("the watch ended");
}

async function answer(command: string, reply: PermissionReply, more: object = {}): Promise<void> {
  const { id: permissionId, sessionId } = await openRequest(command);
  await clientOf(PermissionService, service.url, admin).respondToPermission({
    permissionId,
    sessionId,
    reply,
    ...more,
  });
}

async function partOf(callId: string) {
  const { sessions } = await clientOf(SessionService, service.url, admin).listSessions({ pageSize: 100 });
  for (const { id: sessionId } of sessions) {
    const { parts } = await clientOf(ToolService, service.url, admin).listToolParts({ sessionId });
    const part = parts.find((each) => each.callId === callId);
    if (part) return { part, session: sessions.find(({ id }) => id === sessionId) };
  }
  throw new Error(`no call ${callId}`);
}

test.each([
  ["closed", ">&-"],
  ["/dev/null", ">/dev/null"],
  ["a pipe without a reader", ""],
])("a decision on a stdout that is %s ends with the blocking code", async (_name, redirect) => {
  const { home, flags, text } = claudeSession();
  const input = text("PreToolUse", "Bash", { tool_input: { command: "rm x" }, tool_use_id: `toolu_${++count}` });
  const shell = ["-c", `exec "$0" "$@" ${redirect}`, process.execPath, programEntry(), "hook", "claude", ...flags];
  const env = { PATH: process.env.PATH, HOME: home.home };
  const child = spawn("/bin/sh", shell, { env });
  child.stdout.destroy();
  await once(child.stdout, "close");
  child.stdin.end(input);
  const [[code], said] = await Promise.all([once(child, "exit"), textOf(child.stderr)]);
  expect(code).toBe(2);
  expect(said).toMatch(/the agent cannot read the decision/);
});

test("a use that rules allow is allowed at once, and its report completes the call", async () => {
  const { hook, use } = claudeSession();
  const same = use("echo hi");
  expect(await hook("PreToolUse", "Bash", same)).toMatchObject({
    code: 0,
    stderr: "",
    answer: { hookSpecificOutput: { hookEventName: "PreToolUse", permissionDecision: "allow" } },
  });
  expect(readdirSync(service.workspace)).toEqual([]);
  expect(await hook("PostToolUse", "Bash", same)).toMatchObject({ code: 0, answer: {} });
  const { part, session } = await partOf(same.tool_use_id);
  expect(part).toMatchObject({
    tool: "claude:Bash",
    reportedBy: "host",
    metadata: { directory: service.workspace, permissionMode: "default" },
    state: { case: "completed", value: { output: "hi", metadata: { exit: 0 } } },
  });
  expect(session?.requester).toMatchObject({ kind: "claude", place: service.workspace, subagent: "" });
});

test("a denied use and a rejected one are denied with the reason", async () => {
  const { hook, use } = claudeSession();
  const denied = await hook("PreToolUse", "Bash", use("rm -rf build"));
  expect(denied).toMatchObject({ code: 0, answer: { hookSpecificOutput: { permissionDecision: "deny" } } });
  const waiting = hook("PreToolUse", "Bash", use("make rejected"));
  await answer("make rejected", PermissionReply.REJECT, { message: "Use ninja." });
  expect((await waiting).answer).toMatchObject({
    hookSpecificOutput: { permissionDecision: "deny", permissionDecisionReason: expect.stringContaining("Use ninja.") },
  });
});

test("an approved use is allowed; a command that an approver edited replaces that of the model and is reported", async () => {
  const { hook, use } = claudeSession();
  const waiting = hook("PreToolUse", "Bash", use("make approved"));
  await answer("make approved", PermissionReply.ONCE);
  expect((await waiting).answer).not.toHaveProperty("hookSpecificOutput.updatedInput");

  const edited = use("make draft");
  const other = hook("PreToolUse", "Bash", edited);
  const updatedInput = { command: "echo final" };
  await answer("make draft", PermissionReply.ONCE, { input: updatedInput });
  expect((await other).answer).toMatchObject({ hookSpecificOutput: { permissionDecision: "allow", updatedInput } });
  await hook("PostToolUse", "Bash", { ...edited, tool_input: updatedInput });
  expect((await partOf(edited.tool_use_id)).part.state.case).toBe("completed");
});

/** Listens before the service, and ends the connection in place of the first answers that have these bytes. */
async function losing(bytes: string, count: number): Promise<{ url: string; lost: string[] }> {
  const lost: string[] = [];
  const { hostname, port } = new URL(service.url);
  const server = createServer((near) => {
    const far = connectTcp(Number(port), hostname);
    near.on("error", () => far.destroy()).pipe(far);
    far
      .on("error", () => near.destroy())
      .on("data", (piece: Buffer) => {
        if (lost.length === count || !piece.includes(bytes)) return near.write(piece);
        lost.push(piece.toString());
        return near.destroy();
      });
  }).listen(0, "127.0.0.1");
  onTestFinished(() => void server.close());
  await once(server, "listening");
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, lost };
}

test("an approval whose answer is lost on its way reaches the hook by its repeats", async () => {
  const { url, lost } = await losing('"begun"', 2);
  const { hook, use } = claudeSession(url);
  const same = use("make lost");
  const waiting = hook("PreToolUse", "Bash", same);
  await answer("make lost", PermissionReply.ONCE);
  expect((await waiting).answer).toMatchObject({ hookSpecificOutput: { permissionDecision: "allow" } });
  expect(lost).toHaveLength(2);
  await hook("PostToolUse", "Bash", same);
  expect((await partOf(same.tool_use_id)).part.state.case).toBe("completed");
});

test("a report of another input than the approved one ends the call with an alert", async () => {
  const { hook, use } = claudeSession();
  const same = use("echo one");
  await hook("PreToolUse", "Bash", same);
  await hook("PostToolUse", "Bash", { ...same, tool_input: { command: "echo two" } });
  expect((await partOf(same.tool_use_id)).part.state).toMatchObject({
    case: "error",
    value: { reason: ToolErrorReason.CHANGED_AFTER_APPROVAL },
  });
});

test("a failed use is reported with its text and exit code", async () => {
  const { hook, use } = claudeSession();
  const same = use("echo out; echo err >&2; false");
  await hook("PreToolUse", "Bash", use("echo first"));
  const waiting = hook("PreToolUse", "Bash", same);
  await answer("false", PermissionReply.ONCE);
  await waiting;
  await hook("PostToolUseFailure", "Bash", same);
  expect((await partOf(same.tool_use_id)).part.state).toMatchObject({
    case: "error",
    value: { reason: ToolErrorReason.FAILED, error: "Exit code 1\nout\nerr" },
  });
});

test("a use that nobody answers in time is denied; after a late approval the same use is allowed", async () => {
  const { hook, use } = claudeSession();
  const late = await hook("PreToolUse", "Bash", use("make late"), ["--timeout", "6"]);
  expect(late).toMatchObject({ code: 0, answer: notAnswered });
  await answer("make late", PermissionReply.ONCE);
  const again = await hook("PreToolUse", "Bash", use("make late"));
  expect(again.answer).toMatchObject({ hookSpecificOutput: { permissionDecision: "allow" } });
});

test("a use that is repeated while its request is open waits for the same request", async () => {
  const { hook, use } = claudeSession();
  const uses = [use("make again"), use("make again"), use("make again")];
  const [first, second, third] = uses;
  for (const each of [first, second])
    expect((await hook("PreToolUse", "Bash", each ?? {}, ["--timeout", "6"])).answer).toMatchObject(notAnswered);
  const { permissions } = await clientOf(PermissionService, service.url, admin).listPermissions({});
  expect(permissions.filter(({ patterns }) => patterns.includes("make again"))).toHaveLength(1);

  await answer("make again", PermissionReply.ONCE);
  const { answer: allowed } = await hook("PreToolUse", "Bash", third ?? {});
  expect(allowed).toMatchObject({ hookSpecificOutput: { permissionDecision: "allow" } });
  await hook("PostToolUse", "Bash", third ?? {});
  const { part } = await partOf(first?.tool_use_id ?? "");
  expect(part).toMatchObject({ reportedBy: "host", state: { case: "completed" } });
});

test("a use that is repeated after a late rejection is denied with its reason, and asks again after that", async () => {
  const { hook, use } = claudeSession();
  const repeat = (...flags: string[]) => hook("PreToolUse", "Bash", use("make never"), flags);
  expect((await repeat("--timeout", "6")).answer).toMatchObject(notAnswered);
  await answer("make never", PermissionReply.REJECT, { message: "Use the cache." });
  const denied = { permissionDecision: "deny", permissionDecisionReason: expect.stringContaining("Use the cache.") };
  expect((await repeat()).answer).toMatchObject({ hookSpecificOutput: denied });
  expect((await repeat("--timeout", "6")).answer).toMatchObject(notAnswered);
});

const notAnswered = {
  hookSpecificOutput: {
    permissionDecision: "deny",
    permissionDecisionReason: "not answered yet; if it is approved later, repeat the same call",
  },
};

test("two hooks of one use, such as one of the user and one of the project, both allow it", async () => {
  const { hook, use } = claudeSession();
  const same = use("echo twice");
  const answers = await Promise.all([hook("PreToolUse", "Bash", same), hook("PreToolUse", "Bash", same)]);
  for (const { answer } of answers)
    expect(answer).toMatchObject({ hookSpecificOutput: { permissionDecision: "allow" } });
});

test("a subagent has a child session", async () => {
  const { hook, use } = claudeSession();
  const main = use("echo main");
  const sub = use("echo sub");
  await hook("PreToolUse", "Bash", main);
  await hook("PreToolUse", "Bash", { ...sub, agent_id: "a1", agent_type: "reviewer" });
  const [{ session: root }, { session: child }] = [await partOf(main.tool_use_id), await partOf(sub.tool_use_id)];
  expect(child).toMatchObject({ parentSessionId: root?.id, requester: { subagent: "reviewer" } });
});

test("PermissionRequest gets the decision of PreToolUse; a use that only it announced is reported, too", async () => {
  const { hook, use } = claudeSession();
  const { tool_input, tool_use_id } = use("echo both");
  await hook("PreToolUse", "Bash", { tool_input, tool_use_id });
  const request = await hook("PermissionRequest", "Bash", { tool_input });
  expect(request).toMatchObject({ code: 0, answer: { hookSpecificOutput: { decision: { behavior: "allow" } } } });

  const alone = use("echo alone");
  await hook("PermissionRequest", "Bash", { tool_input: alone.tool_input });
  await hook("PostToolUse", "Bash", alone);
  const { sessions } = await clientOf(SessionService, service.url, admin).listSessions({ pageSize: 100 });
  const parts = await Promise.all(
    sessions.map(({ id }) => clientOf(ToolService, service.url, admin).listToolParts({ sessionId: id })),
  );
  const found = parts.flatMap((page) => page.parts).filter(({ state }) => state.value?.input?.command === "echo alone");
  expect(found.map(({ state }) => state.case)).toEqual(["completed"]);
});

test("a use of opencode is decided, reported and denied like one of Claude Code", async () => {
  const { run, tokenFile } = createHookHome("host-token-for-tests");
  const flags = ["--server", service.url, "--token-file", tokenFile, "--uid", String(process.getuid?.())];
  const use = { session: "ses_1", call: "call_1", tool: "bash", cwd: service.workspace };
  const send = (hook: object) => run(["opencode", ...flags], JSON.stringify({ ...use, ...hook }));
  const input = { command: "echo hi", description: "Greet" };
  expect(await send({ event: "before", input })).toMatchObject({ code: 0, answer: { decision: "allow", input } });
  await send({ event: "after", input, output: "hi", exit: 0 });
  expect((await partOf("call_1")).part).toMatchObject({
    tool: "opencode:bash",
    state: { case: "completed", value: { output: "hi" } },
  });
  const child = { session: "ses_2", parent: "ses_1", agent: "explore", call: "call_2" };
  await send({ ...child, event: "before", input });
  const { session } = await partOf("call_2");
  expect(session).toMatchObject({ requester: { kind: "opencode", subagent: "explore" } });
  await send({ ...child, event: "failed", input, error: "it broke" });
  expect((await partOf("call_2")).part.state).toMatchObject({ case: "error", value: { error: "it broke" } });
  const denied = await send({ event: "before", call: "call_3", input: { command: "rm -rf build" } });
  expect(denied).toMatchObject({ code: 0, answer: { decision: "deny", reason: expect.stringContaining("rm") } });
});

test("opencode runs nothing in a project with code that nobody accepted as it is, and another input ends as changed", async () => {
  const { home, run, tokenFile } = createHookHome("host-token-for-tests");
  const directory = mkdtempSync(join(service.workspace, "project-"));
  onTestFinished(() => rmSync(directory, { recursive: true }));
  const flags = ["--server", service.url, "--token-file", tokenFile, "--uid", String(process.getuid?.())];
  const use = { session: "ses_p", tool: "bash", cwd: join(directory, "deep"), root: directory };
  const send = (hook: object) => run(["opencode", ...flags], JSON.stringify({ ...use, ...hook }));
  let count = 0;
  // Each use differs: the third one of equal uses asks.
  const before = async () => {
    const [call, input] = [`p${count}`, { command: `echo ${count++}` }];
    return { call, ...(await send({ event: "before", call, input })).answer };
  };
  const refused = (file: string) => ({
    decision: "deny",
    reason: expect.stringContaining(`opencode loads ${file} of this`),
  });
  mkdirSync(join(directory, "deep"));
  writeFileSync(join(directory, "opencode.jsonc"), '{ // mine\n  "theme": "dark" }');
  expect(await before()).toMatchObject({ decision: "allow" });

  const files = ["opencode.jsonc", ".opencode/plugins/z.ts", ".opencode/plugin/.z.js", "deep/.opencode/tool/t.js"].map(
    (name) => join(directory, name),
  );
  for (const file of files) {
    mkdirSync(dirname(file), { recursive: true });
    writeFileSync(file, '{ "plugin": ["z"] }');
    expect(await before()).toMatchObject(refused(file));
    const text = readFileSync(file, "utf8");
    const accepted = { [file]: createHash("sha256").update(text).digest("hex") };
    writeFileSync(join(home, "opencode.json"), JSON.stringify({ accepted }));
    expect(await before()).toMatchObject({ decision: "allow" });
    writeFileSync(file, `${text} `);
    expect(await before()).toMatchObject(refused(file));
    rmSync(file);
  }

  const last = await before();
  expect(last).toMatchObject({ decision: "allow" });
  await send({ event: "after", call: last.call, input: { command: "echo other" }, output: "other" });
  expect((await partOf(last.call)).part.state).toMatchObject({
    case: "error",
    value: { reason: ToolErrorReason.CHANGED_AFTER_APPROVAL },
  });
});

test.each(["/proc/x", "/dev/null"])(
  "a hook whose home is %s, where nothing can be remembered, blocks and ends",
  async (home) => {
    const { run, tokenFile } = createHookHome("host-token-for-tests");
    const flags = ["claude", "--server", service.url, "--token-file", tokenFile, "--uid", String(process.getuid?.())];
    const use = { ...JSON.parse(recordedClaudeHook(service.workspace, "PreToolUse", "Bash").text), tool_use_id: home };
    const input = JSON.stringify({ ...use, tool_input: { command: "echo hi" } });
    expect(await run(flags, input, { HOME: home })).toMatchObject({
      code: 2,
      answer: { hookSpecificOutput: { permissionDecision: "deny" } },
      stderr: expect.stringMatching(/ENOENT|ENOTDIR/),
    });
  },
);

test("what is remembered between hooks can be read by its user only", async () => {
  const { home, hook, use } = claudeSession();
  await hook("PreToolUse", "Bash", use("echo secret"));
  const directory = join(home.home, ".local/state/toolgate/decisions");
  const files = readdirSync(directory).map((name) => join(directory, name));
  expect(files).toHaveLength(2);
  expect([directory, ...files].map((path) => statSync(path).mode & 0o077)).toEqual([0, 0, 0]);
  expect(files.map((file) => readFileSync(file, "utf8"))).toEqual([
    expect.stringContaining("assignment"),
    expect.stringContaining("assignment"),
  ]);
});
