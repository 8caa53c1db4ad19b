import { spawn } from "node:child_process";
import { once } from "node:events";
import { createServer as createHttpServer, type RequestListener } from "node:http";
import { type AddressInfo, createServer, type Server } from "node:net";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import { expect, onTestFinished, test } from "vitest";
import { recordedClaudeHook } from "../hooks/recorded.ts";
import { main, programEntry } from "../main.ts";
import { createHookHome, type HookEnd, hookProgram, runHookProgram } from "./hook-process.ts";
import { useService } from "./service.ts";

const service = useService();
const pre = () => recordedClaudeHook(service.workspace, "PreToolUse", "Bash").text;
const uid = ["--uid", String(process.getuid?.())];

/** Expects Claude's own denial, and the exit code that it documents as blocking. */
function expectBlocked({ code, answer, stderr }: HookEnd, reason: RegExp): void {
  expect(answer).toEqual({
    hookSpecificOutput: {
      hookEventName: "PreToolUse",
      permissionDecision: "deny",
      permissionDecisionReason: expect.stringMatching(reason),
    },
  });
  expect(stderr).toMatch(reason);
  expect(code).toBe(2);
}

/** Runs the hook of Claude Code against a server. */
function runAgainst(server: string, more: readonly string[] = uid): Promise<HookEnd> {
  const { run, tokenFile } = createHookHome("host-token-for-tests");
  return run(["claude", "--server", server, "--token-file", tokenFile, ...more], pre());
}

/** Serves until the test ends; returns the address. */
async function listening(server: Server): Promise<string> {
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  onTestFinished(() => void server.close());
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

/** Serves HTTP/1.1; each connection ends with the test. */
function httpWith(serve: RequestListener): Promise<string> {
  const server = createHttpServer(serve);
  onTestFinished(() => server.closeAllConnections());
  return listening(server);
}

/** Answers each connection with these bytes. */
function answering(bytes: string): Promise<string> {
  return listening(createServer((socket) => socket.on("error", () => undefined).once("data", () => socket.end(bytes))));
}

test("a service that is away blocks", async () => {
  const server = createServer();
  const url = await listening(server);
  server.close();
  await once(server, "close");
  expectBlocked(await runAgainst(url), /no service answers at .* \(ECONNREFUSED\)/);
});

test("a program of another user at the address of the service gets nothing, and blocks", async () => {
  const bytes: Buffer[] = [];
  const url = await listening(createServer((socket) => socket.on("data", (piece) => bytes.push(piece)).resume()));
  expectBlocked(await runAgainst(url, ["--uid", "12345"]), /is not the recorded service: its user is \d+, but 12345/);
  expectBlocked(await runAgainst(url, []), /cannot be verified/);
  expect(Buffer.concat(bytes).toString()).toBe("");
});

const ok = "HTTP/1.1 200 OK\r\n";
/** A response with a body of known length. */
const whole = (body: string) => `${ok}content-length: ${body.length}\r\n\r\n${body}`;
const begun = '{"begun":{"assignment":"0123456789abcdef0123456789abcdef","input":{}}}';

test.each([
  ["bytes that are no HTTP", "\0\0\x12\x04\0\0\0\0\0\0"],
  ["nothing", ""],
  ["status 500", "HTTP/1.1 500 Internal Server Error\r\ncontent-length: 6\r\n\r\nbroken"],
  ["a decision with status 500", `HTTP/1.1 500 No\r\ncontent-length: ${begun.length}\r\n\r\n${begun}`],
  ["an empty body", whole("")],
  ["an empty message", whole("{}")],
  ["text", whole("allow")],
  ["a message without an outcome", whole('{"storeId":"x"}')],
  ["a decision without the secret of a report", whole('{"begun":{}}')],
  ["two decisions", whole(`${begun.slice(0, -1)},"refused":{}}`)],
  ["a decision that is cut", `${ok}content-length: 99\r\n\r\n${begun}`],
  ["a decision of unknown length", `${ok}\r\n${begun}`],
  ["a chunk without a size", `${ok}transfer-encoding: chunked\r\n\r\n${begun}\r\n0\r\n\r\n`],
  ["chunks that do not end", `${ok}transfer-encoding: chunked\r\n\r\n${begun.length.toString(16)}\r\n${begun}\r\n`],
])("an answer with %s blocks", async (_name, bytes) => {
  expectBlocked(await runAgainst(await answering(bytes)), /Nothing was run/);
});

test("control: the same decision, whole or in chunks, allows", async () => {
  const chunked = `${ok}transfer-encoding: chunked\r\n\r\n9\r\n${begun.slice(0, 9)}\r\n${(begun.length - 9).toString(16)}\r\n${begun.slice(9)}\r\n0\r\n\r\n`;
  for (const bytes of [whole(begun), chunked])
    expect(await runAgainst(await answering(bytes))).toMatchObject({
      code: 0,
      answer: { hookSpecificOutput: { permissionDecision: "allow", updatedInput: {} } },
    });
});

test("a service that does not answer blocks before the agent's limit", async () => {
  expectBlocked(
    await runAgainst(await httpWith(() => undefined), [...uid, "--timeout", "1"]),
    /^Toolgate: the service did not answer in time\. Nothing was run\.$/m,
  );
});

test("a service that is frozen and accepts no connection blocks", async () => {
  const program =
    'require("net").createServer().listen(0, "127.0.0.1", function () { console.log(this.address().port); })';
  const frozen = spawn(process.execPath, ["-e", program], { stdio: ["ignore", "pipe", "inherit"] });
  onTestFinished(() => void frozen.kill("SIGKILL"));
  const [port] = await once(frozen.stdout, "data");
  frozen.kill("SIGSTOP");
  expectBlocked(await runAgainst(`http://127.0.0.1:${Number(port)}`), /is not the recorded service|no service answers/);
});

test("an agent that does not end its input is answered before its limit", async () => {
  const { tokenFile } = createHookHome("host-token-for-tests");
  const args = ["claude", "--server", service.url, "--token-file", tokenFile, ...uid, "--timeout", "1"];
  const hook = spawn(process.execPath, [hookProgram(), ...args], { stdio: ["pipe", "pipe", "ignore"] });
  hook.stdin.write(pre());
  const [printed, [code]] = await Promise.all([text(hook.stdout), once(hook, "exit")]);
  expect(code).toBe(2);
  expect(JSON.parse(printed)).toMatchObject({ hookSpecificOutput: { permissionDecision: "deny" } });
});

test("a decision that the agent no longer reads blocks", async () => {
  const { tokenFile, home } = createHookHome("host-token-for-tests");
  const server = await answering(whole(begun));
  const words = [hookProgram(), "claude", "--server", server, "--token-file", tokenFile, ...uid];
  const hook = spawn(process.execPath, words, { env: { HOME: home }, stdio: ["pipe", "pipe", "pipe"] });
  hook.stdout.destroy();
  hook.stdin.end(pre());
  const [printed, [code]] = await Promise.all([text(hook.stderr), once(hook, "exit")]);
  expect({ code, printed }).toEqual({
    code: 2,
    printed: expect.stringContaining("the agent cannot read the decision"),
  });
});

test("a report whose connection drops is sent again", async () => {
  let reports = 0;
  const url = await httpWith((request, response) => {
    request.resume();
    if (!request.url?.endsWith("/FinishCall")) response.end(begun);
    else if (++reports === 1) response.destroy();
    else response.end("{}");
  });
  const { run, tokenFile } = createHookHome("host-token-for-tests");
  const send = (event: "PreToolUse" | "PostToolUse") =>
    run(
      ["claude", "--server", url, "--token-file", tokenFile, ...uid],
      recordedClaudeHook(service.workspace, event, "Bash").text,
    );
  await send("PreToolUse");
  expect(await send("PostToolUse")).toMatchObject({ code: 0, stderr: "" });
  expect(reports).toBe(2);
});

test("a wrong token blocks", async () => {
  const { run, tokenFile } = createHookHome("no-token-of-this-service");
  const end = await run(["claude", "--server", service.url, "--token-file", tokenFile, ...uid], pre());
  expectBlocked(end, /Toolgate: .*Nothing was run\. Next: run `toolgate connect` again/);
});

test("a token without the role host blocks", async () => {
  const { run, tokenFile } = createHookHome("approver-token-for-tests");
  const end = await run(["claude", "--server", service.url, "--token-file", tokenFile, ...uid], pre());
  expectBlocked(end, /ROLE_MISSING/);
});

test("a missing token and a missing file block", async () => {
  const { run, home } = createHookHome("");
  expectBlocked(await run(["claude", "--server", service.url, ...uid], pre()), /no token for claude is named/);
  const gone = join(home, "gone");
  expectBlocked(await run(["claude", "--token-file", gone, ...uid], pre()), /ENOENT/);
});

test.each([
  ["nothing", "", /is not JSON/],
  ["text", "not JSON", /is not JSON/],
  ["an event that is not handled", '{"hook_event_name":"Stop","session_id":"s"}', /hook_event_name is "Stop"/],
  ["an empty session", '{"hook_event_name":"PreToolUse","session_id":""}', /has no session_id/],
  ["a use without a tool", '{"hook_event_name":"PreToolUse","session_id":"s","cwd":"/"}', /has no tool_name/],
  ["more than 16 MiB", " ".repeat(17 * 1_048_576), /has more than 16777216 bytes/],
])("an input with %s blocks", async (_name, input, reason) => {
  const { run } = createHookHome("");
  expectBlocked(await run(["claude"], input), reason);
});

test.each([
  [["unknown"], '"unknown" is not a kind of agent: claude, opencode'],
  [[], '"" is not a kind of agent'],
  [["claude", "--allow", "all"], "--allow is not an option"],
  [["claude", "--uid"], "--uid is not an option, or has no value"],
  [["claude", "--uid", "me"], "--uid is not a number"],
])("a hook with the arguments %j ends with the blocking code", async (args, reason) => {
  const { code, stdout, stderr } = await main(args, {}, hookProgram());
  expect({ code, stdout, stderr }).toEqual({ code: 2, stdout: "", stderr: expect.stringContaining(reason) });
});

test("settings of an earlier version, which run `toolgate hook`, decide and block in the same way", async () => {
  const { home, tokenFile } = createHookHome("host-token-for-tests");
  const run = (server: string) => {
    const words = [programEntry(), "hook", "claude", "--server", server, "--token-file", tokenFile, ...uid];
    return runHookProgram([...words, "--timeout", "6"], pre(), { HOME: home });
  };
  expect(await run(service.url)).toMatchObject({ answer: { hookSpecificOutput: { permissionDecision: "deny" } } });
  expectBlocked(await run("http://127.0.0.1:9"), /no service answers/);
  const unknown = await main(["hook", "unknown"], {});
  expect(unknown).toMatchObject({ code: 2, stdout: "", stderr: expect.stringContaining("Allowed choices are") });
});

test("every failure of a hook of opencode is its plugin's denial, unless the tool ran already", async () => {
  const { run, tokenFile } = createHookHome("");
  const away = ["opencode", "--server", "http://127.0.0.1:9", "--token-file", tokenFile, ...uid];
  const use = { session: "s", call: "c", tool: "bash", input: {}, cwd: "/" };
  const deny = { decision: "deny", reason: expect.stringContaining("Nothing was run") };
  expect(await run(away, JSON.stringify({ ...use, event: "before" }))).toMatchObject({ code: 2, answer: deny });
  expect(await run(away, JSON.stringify({ ...use, event: "other" }))).toMatchObject({ code: 2, answer: deny });
  expect(await run(away, JSON.stringify({ ...use, event: "after" }))).toMatchObject({ code: 0 });
});
