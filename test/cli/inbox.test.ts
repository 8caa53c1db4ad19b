import { once } from "node:events";
import { chmod, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Code } from "@connectrpc/connect";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { PermissionAction, PermissionOutcome, Shown } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { PermissionReply, type PermissionResponse } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { type FakeRoutes, refused } from "./fake-server.ts";
import { type InboxServer, startInboxServer } from "./inbox-server.ts";
import { type RunningProcess, spawnToolgate, startAtTerminal } from "./toolgate.ts";

const ask = {
  id: "per_1",
  sessionId: "ses_child",
  ancestry: ["ses_root", "ses_child"],
  agent: "reviewer",
  permission: "bash",
  patterns: ["npm test"],
  tool: { messageId: "msg_1", callId: "call_1" },
  digest: "digest_1",
  expires: Date.now() + 900_000,
  preview: { command: "npm test" },
  decisions: [{ pattern: "npm test", action: PermissionAction.ASK, reason: "no rule matches: ask" }],
  offers: [
    { id: "off_a", text: "npm test in this session" },
    { id: "off_b", text: "npm test in this project" },
  ],
};

let server: InboxServer;
let running: RunningProcess | undefined;
let folder: string;
let slow: PromiseWithResolvers<string>;

beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), "toolgate-inbox-"));
  slow = Promise.withResolvers();
  const readBoundFile = async ({ path }: { path: string }) => {
    if (path === "slow.sh") return { text: await slow.promise };
    if (path !== "run.sh") throw refused(Code.FailedPrecondition, "ASK_CHANGED", "it has changed");
    return { text: `${Array.from({ length: 240 }, (_, i) => `echo ${i + 1}\n`).join("")}rm -rf build\n` };
  };
  const tools: FakeRoutes["tools"] = {
    getToolPart: () => ({ part: { state: { case: "pending", value: { input: { command: "npm test\u202e" } } } } }),
    readToolOutput: () => ({ data: Buffer.from(`+first\n${"+more\n".repeat(40)}+the\u202e last\n`), end: true }),
  };
  const toml = '[agent.reviewer.permission.bash]\n"npm test *" = "allow"\n';
  server = await startInboxServer(tools, {
    readBoundFile,
    suggestRules: ({ permissionId }) => ({
      rules: permissionId === "per_1" ? [{ approvals: 12, days: 3, toml }] : [],
    }),
  });
});

afterEach(async () => {
  running?.child.kill("SIGKILL");
  await server.close();
  await rm(folder, { recursive: true });
});

function environment(more: Record<string, string> = {}): Record<string, string> {
  return { TOOLGATE_URL: server.url, TOOLGATE_DATA: folder, ...more };
}

/** Opens the inbox at a terminal, with the ask on the screen and ready to be answered. */
async function openInbox(more: Record<string, string> = {}): Promise<RunningProcess> {
  running = startAtTerminal(["inbox"], environment(more));
  await running.sees("live");
  server.ask(ask);
  await running.sees(onceKey);
  return running;
}

async function nextReply(typed: string): Promise<PermissionResponse> {
  const reply = once(server.seen, "reply");
  running?.child.stdin?.write(typed);
  const [response] = await reply;
  return response;
}

/** The key that approves, which is shown once it does. */
const onceKey = "\x1b[1mo\x1b[22m once";

describe("the inbox at a terminal", () => {
  test("shows who asks, from where, what would run and why, and is answered by one key", async () => {
    const { sees } = await openInbox();
    for (const words of ["reviewer", "Title of ses_child", "Title of ses_root", "npm test", "no rule matches: ask"])
      await sees(words);
    await sees("approved 12 times on 3 days, never rejected: a rule could answer it", '"npm test *" = "allow"');
    expect(await nextReply("o")).toMatchObject({
      permissionId: "per_1",
      reply: PermissionReply.ONCE,
      expectedDigest: "digest_1",
      wholeCall: false,
    });
  });

  test("shows diffs in colours", async () => {
    await openInbox();
    const preview = { diff: "--- a.txt\n+++ a.txt\n@@ -1 +1 @@\n-old\n+new\n" };
    server.ask({ ...ask, id: "per_2", tool: { callId: "call_2" }, permission: "edit", preview });
    await running?.sees("2 wait");
    running?.child.stdin?.write("j");
    await running?.sees("\x1b[32m+new\x1b[39m");
    await running?.sees("\x1b[31m-old\x1b[39m");
  });

  test("approves a change of which only a part is shown after all of it was on the screen", async () => {
    const { child, sees } = await openInbox();
    const preview = { diff: "+first\n", url: "toolgate-output:out_1" };
    server.ask({ ...ask, id: "per_2", tool: { callId: "call_2" }, permission: "edit", preview });
    await sees("2 wait");
    child.stdin?.write("j");
    await sees("the whole is toolgate-output:out_1", onceKey);
    child.stdin?.write("o");
    await sees("only a part of it is shown: w loads the whole");
    child.stdin?.write("w");
    await sees("w loads the whole", "more below", onceKey);
    child.stdin?.write("o");
    await sees("read it to its end first");
    child.stdin?.write(" ".repeat(8));
    await sees("+the\\u202e last", onceKey);
    expect(server.replies).toEqual([]);
    expect(await nextReply("o")).toMatchObject({ permissionId: "per_2", reply: PermissionReply.ONCE });
  });

  test("shows the texts of the files that a call runs, and approves it once the end of them was on the screen", async () => {
    const { child, sees } = await openInbox();
    const files = ["run.sh", "gone.sh"].map((path) => ({ path, sha256: "ab", bytes: 9n, lines: 241 }));
    const view = { tool: "bash", title: "sh run.sh", complete: true, files: files.slice(0, 1) };
    server.ask({ ...ask, id: "per_2", tool: { callId: "call_2" }, view });
    server.ask({ ...ask, id: "per_3", tool: { callId: "call_3" }, view: { ...view, files: files.toReversed() } });
    await sees("3 wait");
    child.stdin?.write("j");
    await sees("run.sh, 241 lines", "echo 1", "more below", onceKey);
    child.stdin?.write("o");
    await sees("read it to its end first");
    child.stdin?.write(" ".repeat(99));
    await sees("rm -rf build", onceKey);
    expect(server.replies).toEqual([]);
    expect(await nextReply("o")).toMatchObject({ permissionId: "per_2", shown: Shown.WHOLE });
    child.stdin?.write("j");
    await sees("rm -rf build", "its text is not shown: it has changed", onceKey);
    child.stdin?.write(" ".repeat(99));
    await sees("rm -rf build", "it has changed", "rm -rf build", onceKey);
    expect(await nextReply("o")).toMatchObject({ permissionId: "per_3", shown: Shown.PARTIAL });
  });

  test("approves nothing before the texts of its files are there", async () => {
    const { child, sees } = await openInbox();
    const view = { tool: "bash", title: "sh slow.sh", files: [{ path: "slow.sh", sha256: "ab", bytes: 9n, lines: 1 }] };
    server.ask({ ...ask, id: "per_2", tool: { callId: "call_2" }, view });
    await sees("2 wait");
    child.stdin?.write("j");
    await sees("its text is not shown: it is being read", onceKey);
    child.stdin?.write("o");
    await sees("read it to its end first");
    expect(server.replies).toEqual([]);
    slow.resolve("echo slow\n");
    await sees("echo slow", onceKey);
    expect(await nextReply("o")).toMatchObject({ permissionId: "per_2", shown: Shown.WHOLE });
  });

  test("says in words what always would save, and saves what is chosen", async () => {
    const { child, sees } = await openInbox();
    child.stdin?.write("a");
    await sees("bash: npm test in this project");
    expect(await nextReply("2")).toMatchObject({ reply: PermissionReply.ALWAYS, offerId: "off_b" });
  });

  test("rejects with advice, and may be called back before", async () => {
    const { child, sees } = await openInbox();
    child.stdin?.write("rno");
    await sees("› no");
    child.stdin?.write("\x15use pnpmm\x7f");
    await sees("use pnpm▏");
    expect(await nextReply("\r")).toMatchObject({ reply: PermissionReply.REJECT, message: "use pnpm" });
  });

  test("has the arguments changed in the editor, where nothing in them is hidden", async () => {
    const editor = join(folder, "editor");
    await writeFile(editor, `#!/bin/sh\ngrep -q '\\\\u202e' "$2" && echo '{"command": "npm run lint"}' > "$2"\n`);
    await chmod(editor, 0o755);
    await openInbox({ EDITOR: `${editor} --wait` });
    expect(await nextReply("e")).toMatchObject({ reply: PermissionReply.ONCE, input: { command: "npm run lint" } });
  });

  test("says what to do when the edited arguments are no JSON, and leaves the ask open", async () => {
    await openInbox({ EDITOR: "echo nonsense >" });
    running?.child.stdin?.write("e");
    await running?.sees("the edited input is not JSON", "next:");
    expect(await nextReply("o")).toMatchObject({ reply: PermissionReply.ONCE });
  });

  test("says by whom it was answered elsewhere, and takes no answer any more", async () => {
    await openInbox();
    server.settle({ permissionId: "per_1", outcome: PermissionOutcome.REJECT, by: "alice", message: "use pnpm" });
    await running?.sees("rejected by alice: use pnpm");
    running?.child.stdin?.write("o");
    server.ask({ ...ask, id: "per_2", tool: { callId: "call_2" } });
    await running?.sees("rejected by alice: use pnpm", "1 wait");
    running?.child.stdin?.write("j");
    expect(await nextReply("rno\r")).toMatchObject({ permissionId: "per_2" });
    expect(server.replies).toHaveLength(1);
  });

  test("answers all asks of a call that it shows, each for itself", async () => {
    const { sees } = await openInbox();
    server.ask({ ...ask, id: "per_2", permission: "external_directory", patterns: ["/tmp/*"] });
    // The change made it inert for a moment; the key is shown again when it is not any more.
    await sees("external_directory", onceKey);
    await nextReply("o");
    if (server.replies.length < 2) await once(server.seen, "reply");
    expect(server.replies.map(({ permissionId, reply }) => [permissionId, reply])).toEqual([
      ["per_1", PermissionReply.ONCE],
      ["per_2", PermissionReply.ONCE],
    ]);
  });

  test("finds one of 200 requests by words, and rejects all of its session with one reason", async () => {
    const { child, sees } = await openInbox();
    for (let i = 2; i <= 200; i += 1) {
      const input = [{ path: "/command", text: i === 150 ? "make deploy" : "npm test" }];
      const call = { ...ask, sessionId: `ses_${i % 5}`, tool: { callId: `call_${i}` }, view: { tool: "bash", input } };
      server.ask({ ...call, id: `per_${i}` });
    }
    await sees("200 wait", "×198");
    child.stdin?.write("/tool:bash deploy");
    await sees("200 wait, 1 with tool:bash deploy");
    child.stdin?.write("\rr\tnot today");
    await sees("Enter rejects all of this session", "not today▏");
    const rejected = once(server.seen, "rejected");
    child.stdin?.write("\r");
    expect(await rejected).toMatchObject([{ sessionId: "ses_0", message: "not today" }]);
  });

  test("takes no answer from pasted text", async () => {
    await openInbox();
    running?.child.stdin?.write("\x1b[200~o\x1b[201~");
    expect(await nextReply("rno\r")).toMatchObject({ reply: PermissionReply.REJECT });
    expect(server.replies).toHaveLength(1);
  });

  test("shows control characters and overrides as text", async () => {
    const { sees } = await openInbox();
    server.ask({
      ...ask,
      id: "per_2",
      agent: "evil\x1b]0;title\x07",
      tool: { callId: "call_2" },
      preview: { command: "ls \x1b[2J\u202e" },
    });
    await sees("ls \\x1b[2J\\u202e");
    await sees("evil\\x1b]0;title\\x07");
  });

  test("says that it is not live while the server is away, and then shows what is open now", async () => {
    const { sees } = await openInbox();
    server.forget("per_1");
    server.cut();
    await sees(onceKey, "not live", "settled while disconnected");
  });

  test("is left by q, with the terminal as it was", async () => {
    const { child, finished } = await openInbox();
    child.stdin?.write("q");
    const { code, stdout } = await finished;
    expect(code).toBe(0);
    expect(stdout.trimEnd().endsWith("\x1b[?25h\x1b[?1049l")).toBe(true);
  });
});

describe("the inbox without a terminal", () => {
  test("prints what is asked and settled, with the command that answers, and goes on", async () => {
    running = spawnToolgate(["inbox"], environment());
    server.ask(ask);
    await running.sees("toolgate reply per_1 once");
    server.settle({ permissionId: "per_1", outcome: PermissionOutcome.ONCE, by: "alice" });
    await running.sees("approved once by alice");
  });

  test("prints them as JSON with --json, at a terminal, too", async () => {
    running = startAtTerminal(["inbox", "--json"], environment());
    server.ask(ask);
    await running.sees('"permissionAsked":{"id":"per_1"');
  });
});
