import { once } from "node:events";
import { createServer as createHttpServer } from "node:http";
import { createServer as createHttp2Server, type Http2Server, type ServerHttp2Stream } from "node:http2";
import { type AddressInfo, createServer, type Server } from "node:net";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { recordedClaudeHook } from "../hooks/recorded.ts";
import { createHookHome, type HookEnd } from "./hook-process.ts";
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

/** Serves HTTP/2 with a function for each stream; clients may break streams and sessions. */
function http2With(serve: (stream: ServerHttp2Stream) => void): Http2Server {
  return createHttp2Server()
    .on("stream", (stream: ServerHttp2Stream) => serve(stream.on("error", () => undefined)))
    .on("session", (session) => {
      session.on("error", () => undefined);
      onTestFinished(() => void session.destroy());
    });
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

test("an answer that is not HTTP/2 blocks, and so does status 500", async () => {
  const http = createHttpServer((_request, response) => void response.writeHead(500).end("broken"));
  expectBlocked(await runAgainst(await listening(http)), /Nothing was run/);
  const failing = http2With((stream) => {
    stream.respond({ ":status": 500 });
    stream.end("broken");
  });
  expectBlocked(await runAgainst(await listening(failing)), /Nothing was run/);
});

test.each([
  ["no message", Buffer.alloc(0)],
  ["an empty message", Buffer.from([0, 0, 0, 0, 0])],
  ["bytes that are no message", Buffer.from([0, 0, 0, 0, 3, 255, 255, 255])],
  ["a message without an outcome", Buffer.from([0, 0, 0, 0, 3, 0x22, 1, 0x78])],
])("a response with %s blocks", async (_name, body) => {
  const malformed = http2With((stream) => {
    stream.respond({ ":status": 200, "content-type": "application/grpc+proto" }, { waitForTrailers: true });
    stream.on("wantTrailers", () => stream.sendTrailers({ "grpc-status": "0" })).end(body);
  });
  expectBlocked(await runAgainst(await listening(malformed)), /Nothing was run/);
});

test("a service that does not answer blocks before the agent's limit", async () => {
  const silent = http2With(() => undefined);
  expectBlocked(
    await runAgainst(await listening(silent), [...uid, "--timeout", "1"]),
    /^Toolgate: the service did not answer in time\. Nothing was run\.$/m,
  );
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

test("a kind of agent that is unknown ends with the blocking code", async () => {
  const { run } = createHookHome("");
  await expect(run(["unknown"], pre())).rejects.toThrow("Allowed choices are claude, opencode");
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
