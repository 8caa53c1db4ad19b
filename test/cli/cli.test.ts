import { once } from "node:events";
import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Code } from "@connectrpc/connect";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { PermissionOutcome, Shown } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { PermissionReply, ToolErrorReason } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { findToken } from "../../src/client/find-token.ts";
import { saveLogin } from "../../src/client/stored-logins.ts";
import { type EventInit, type FakeRoutes, type FakeServer, refused, startFakeServer } from "./fake-server.ts";
import { spawnToolgate, startToolgate, toolgate } from "./toolgate.ts";

let folder: string;
let server: FakeServer;
let environment: Record<string, string>;

beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), "toolgate-cli-"));
  await start();
});

afterEach(async () => {
  await server.close();
  await rm(folder, { recursive: true });
});

async function start(routes: FakeRoutes = {}): Promise<void> {
  await server?.close();
  server = await startFakeServer(routes);
  environment = {
    ...{ TOOLGATE_URL: server.url, TOOLGATE_DATA: folder, TEST_ENGINE_URL: server.url },
    XDG_CONFIG_HOME: join(folder, "config"),
  };
}

/** Leaves a generated caller token, and the sign-in of an approver. */
async function leaveTokens(): Promise<void> {
  await mkdir(join(folder, "tokens"));
  await writeFile(join(folder, "tokens", "caller"), "caller-secret\n");
  saveLogin(server.url, { storeId: "store_1", id: "ann", token: "approver-secret", expires: 0 }, environment);
}

const part = { sessionId: "ses_1", callId: "c1", tool: "bash" };
const running: EventInit = {
  case: "part",
  value: { ...part, state: { case: "running", value: { title: "npm test", time: { start: 0 } } } },
};
const output = (text: string): EventInit => ({ case: "output", value: { callId: "c1", data: Buffer.from(text) } });
const completed = (text: string): EventInit => ({
  case: "part",
  value: {
    ...part,
    state: { case: "completed", value: { title: "npm test", output: text, time: { start: 0, end: 40 } } },
  },
});
const failed = (reason: ToolErrorReason, error: string): EventInit => ({
  case: "part",
  value: { ...part, state: { case: "error", value: { reason, error } } },
});
const ask = {
  id: "per_1",
  sessionId: "ses_1",
  permission: "bash",
  patterns: ["npm test"],
  digest: "digest_1",
  preview: { command: "npm test" },
  offers: [
    { id: "off_a", text: "`npm test` in this session" },
    { id: "off_b", text: "what starts with npm" },
  ],
};
const settled = { permissionId: "per_1", outcome: PermissionOutcome.ONCE, by: "alice" };

describe("toolgate call", () => {
  test("leaves the output on stdout and all else on stderr", async () => {
    const shown = "hello \x1b[31mred\x1b[0m\x1b]0;title\x07\n";
    server.log(running, output(shown), completed(`${shown}(exit 0)`));
    const { code, stdout, stderr } = await toolgate(["call", "bash", '{"command":"npm test"}'], environment);
    expect(code).toBe(0);
    expect(stdout).toBe("hello red\\x1b]0;title\\x07\n(exit 0)");
    expect(stderr).toContain("● running  bash  npm test");
    expect(stderr).toContain("✓ completed  bash  npm test  40 ms");
  });

  test("sends the arguments, with generated ids, and prints the ids", async () => {
    server.log(completed(""));
    const { stderr } = await toolgate(
      ["call", "bash", "-", "--timeout", "5000", "--metadata", '{"a":1}'],
      environment,
      '{"command":"ls"}',
    );
    expect(server.executed).toMatchObject([
      { tool: "bash", input: { command: "ls" }, timeoutMs: 5000, metadata: { a: 1 }, expectedStoreId: "store_1" },
    ]);
    const [request] = server.executed;
    expect(stderr).toContain(`session ${request?.sessionId}  call ${request?.callId}`);
    expect(request?.sessionId).toMatch(/^ses_[0-9a-f]{32}$/);
  });

  test("goes on after a lost connection, with the same ids, where it stood", async () => {
    server.log(running, output("one\n"));
    const { sees, finished } = startToolgate(
      ["call", "bash", "{}", "--session", "ses_1", "--call-id", "c1"],
      environment,
    );
    await sees("one");
    server.cut();
    await sees("trying again");
    server.log(output("two\n"), completed("one\ntwo\n"));
    expect(await finished).toMatchObject({ code: 0, stdout: "one\ntwo\n" });
    expect(server.executed).toMatchObject([
      { sessionId: "ses_1", callId: "c1", afterSeq: 0n, expectedStoreId: "" },
      { sessionId: "ses_1", callId: "c1", afterSeq: 2n, expectedStoreId: "store_1" },
    ]);
  });

  test("shows an ask with the command that answers it, and who answered", async () => {
    server.log({ case: "permissionAsked", value: ask });
    const { sees, finished } = startToolgate(["call", "bash", "{}"], environment);
    await sees(`toolgate reply per_1 once --session ses_1 --server ${server.url}`);
    server.log({ case: "permissionSettled", value: settled }, running, completed("ok"));
    const { code, stdout, stderr } = await finished;
    expect({ code, stdout }).toEqual({ code: 0, stdout: "ok" });
    expect(stderr).toContain("command  npm test");
    expect(stderr).toContain("✓ approved once by alice");
    expect(server.replies).toEqual([]);
  });

  test("a refused call exits 3 and says what the person said", async () => {
    server.log(failed(ToolErrorReason.REJECTED, "Rejected: use staging"));
    const { code, stdout, stderr } = await toolgate(["call", "bash", "{}"], environment);
    expect({ code, stdout }).toEqual({ code: 3, stdout: "" });
    expect(stderr).toContain("✗ rejected  bash\n  Rejected: use staging");
  });

  test("the first Ctrl-C cancels the call", async () => {
    server.log(running);
    const { child, sees, finished } = spawnToolgate(["call", "bash", "{}", "--call-id", "c1"], environment);
    await sees("running");
    const cancelled = once(server.seen, "cancel");
    child.kill("SIGINT");
    await cancelled;
    server.log(failed(ToolErrorReason.CANCELLED, "Cancelled"));
    expect(await finished).toMatchObject({ code: 4 });
    expect(server.cancelled).toMatchObject([{ callId: "c1" }]);
  });

  test("the second Ctrl-C leaves the call running and says how to come back", async () => {
    server.log(running);
    const { child, sees, finished } = spawnToolgate(
      ["call", "bash", "{}", "--session", "ses_1", "--call-id", "c1"],
      environment,
    );
    await sees("running");
    child.kill("SIGINT");
    await sees("cancelling");
    child.kill("SIGINT");
    const { code, stderr } = await finished;
    expect(code).toBe(4);
    expect(stderr).toContain("toolgate call bash '{}' --session ses_1 --call-id c1");
  });

  test("--json writes one event a line to stdout and nothing else", async () => {
    server.log(running, output("hi"), completed("hi"));
    const { stdout, stderr } = await toolgate(["call", "bash", "{}", "--json"], environment);
    const events = stdout
      .trimEnd()
      .split("\n")
      .map((line) => JSON.parse(line));
    expect(events.map(({ seq }) => seq)).toEqual(["1", "2", "3"]);
    expect(events[1].output).toEqual({ callId: "c1", data: "aGk=" });
    expect(stderr).toBe("");
  });

  test("--detach returns at once and says how to follow", async () => {
    await start({
      tools: { callTool: () => ({ part: { ...part, state: { case: "pending", value: {} } }, permissions: [ask] }) },
    });
    const { code, stderr } = await toolgate(
      ["call", "bash", "{}", "--session", "ses_1", "--call-id", "c1", "--detach"],
      environment,
    );
    expect(code).toBe(0);
    expect(stderr).toContain("toolgate reply per_1 once");
    expect(stderr).toContain("toolgate watch ses_1 --call c1");
  });
});

describe("toolgate run", () => {
  test("refuses what is asked where there is no terminal, and ends the engine", async () => {
    server.seen.once("reply", () => {
      server.log({
        case: "permissionSettled",
        value: { ...settled, outcome: PermissionOutcome.REJECT, by: "terminal" },
      });
      server.log(failed(ToolErrorReason.REJECTED, "Rejected"));
    });
    server.log({ case: "permissionAsked", value: ask });
    const { code, stderr } = await toolgate(["run", "bash", "{}", "--workspace", "/w"], environment);
    expect(code).toBe(3);
    expect(server.replies).toMatchObject([
      { permissionId: "per_1", reply: PermissionReply.REJECT, expectedDigest: "digest_1" },
    ]);
    expect(server.replies[0]?.message).toContain("asks only at its own terminal");
    expect(server.tokens).toEqual(new Set(["Bearer caller-token-for-tests", "Bearer approver-token-for-tests"]));
    expect(stderr).toContain('embedded {"workspace":"/w"}');
    expect(stderr).toContain("engine closed");
  });
});

test("toolgate reject rejects a session, or all of an agent, with a message and says what that ended", async () => {
  const asked: unknown[] = [];
  await start({
    permissions: {
      rejectPermissions(request) {
        asked.push(request);
        return { settled: [{ ...settled, outcome: PermissionOutcome.REJECT, callId: "c1", message: "Stop." }] };
      },
    },
  });
  const { code, stdout } = await toolgate(["reject", "ses_1", "-m", "Stop."], environment);
  expect({ code, stdout }).toEqual({ code: 0, stdout: "per_1  call c1  rejected by alice: Stop.\n" });
  await toolgate(["reject", "--agent", "plan", "-m", "Stop."], environment);
  expect(asked).toMatchObject([
    { sessionId: "ses_1", agent: "", message: "Stop." },
    { sessionId: "", agent: "plan", message: "Stop." },
  ]);
});

test("toolgate plan ends with the code with which the call would fail", async () => {
  const problem = { reason: ToolErrorReason.FAILED, message: "a.txt not found" };
  await start({ tools: { planTool: () => ({ title: "a.txt", problem }) } });
  const { code, stdout } = await toolgate(["plan", "edit", "{}"], environment);
  expect(code).toBe(1);
  expect(stdout).toContain("a.txt not found");
});

test("toolgate grants says how many calls are left of a grant", async () => {
  const grants = [
    { id: "grt_1", permission: "bash", text: "npm test", times: 5, left: 3 },
    { id: "grt_2", permission: "bash", text: "npm run lint", times: 2, left: 0 },
    { id: "grt_3", permission: "bash", text: "npm run build" },
  ];
  await start({ permissions: { listGrants: () => ({ grants }) } });
  const { stdout } = await toolgate(["grants", "--all"], environment);
  const lives = stdout.match(/\d of 5 left.*|used up.*|(?<!, )until revoked/g);
  expect(lives).toEqual(["3 of 5 left, until revoked", "used up: 2 of 2", "until revoked"]);
});

describe("toolgate reply", () => {
  test("finds the ask, and answers what was shown with the chosen offer", async () => {
    await start({ permissions: { listPermissions: () => ({ permissions: [ask] }) } });
    const { code, stderr } = await toolgate(["reply", "per_1", "always", "--offer", "2"], environment);
    expect(code).toBe(0);
    expect(stderr).toContain("✓ approved always");
    expect(server.replies).toMatchObject([
      {
        sessionId: "ses_1",
        permissionId: "per_1",
        reply: PermissionReply.ALWAYS,
        offerId: "off_b",
        expectedDigest: "digest_1",
      },
    ]);
    expect(server.replies[0]?.replyId).not.toBe("");
  });

  test("sends edited arguments, answers for the whole call, and says how long a grant may live and how often", async () => {
    await start({ permissions: { listPermissions: () => ({ permissions: [ask] }) } });
    const edited = await toolgate(["reply", "per_1", "once", "--edit", '{"command": "npm t"}'], environment);
    expect(edited.stderr).toContain("✓ edited");
    const before = Date.now();
    await toolgate(["reply", "per_1", "always", "--whole-call", "--for", "8h", "--times", "5"], environment);
    expect(server.replies).toMatchObject([
      { reply: PermissionReply.ONCE, input: { command: "npm t" }, wholeCall: false },
      { reply: PermissionReply.ALWAYS, wholeCall: true, times: 5 },
    ]);
    expect(server.replies[1]?.expires).toBeGreaterThanOrEqual(before + 8 * 3_600_000);
  });

  test("approves no change of which it shows only a part, and names what shows the whole", async () => {
    const cut = { ...ask, preview: { diff: "+first\n", url: "toolgate-output:out_1" } };
    await start({ permissions: { listPermissions: () => ({ permissions: [cut] }) } });
    for (const answer of ["once", "always"]) {
      const { code, stderr } = await toolgate(["reply", "per_1", answer], environment);
      expect(code).toBe(2);
      expect(stderr).toContain("it is longer than this command shows");
      expect(stderr).toContain(`${server.url}/r/per_1`);
      expect(stderr).toContain("toolgate output ses_1 toolgate-output:out_1");
    }
    expect(server.replies).toEqual([]);
    expect(await toolgate(["reply", "per_1", "reject"], environment)).toMatchObject({ code: 0 });
    // An edit without a difference is an approval.
    await toolgate(["reply", "per_1", "once", "--edit", '{"command": "npm test"}'], environment);
    expect(server.replies[1]).toMatchObject({ reply: PermissionReply.ONCE, shown: Shown.PARTIAL });
  });

  test("prints the answer that counts with --json", async () => {
    await start({ permissions: { listPermissions: () => ({ permissions: [ask] }) } });
    const { stdout } = await toolgate(["reply", "per_1", "once", "--json"], environment);
    expect(JSON.parse(stdout)).toEqual({ sessionId: "ses_1", permissionId: "per_1", reply: "PERMISSION_REPLY_ONCE" });
  });

  test("says who won when the answer came too late", async () => {
    const tooLate = refused(Code.FailedPrecondition, "ALREADY_ANSWERED", "ask per_1 was answered by alice");
    await start({
      permissions: {
        listPermissions: () => ({}),
        respondToPermission: () => {
          throw tooLate;
        },
      },
    });
    const { code, stderr } = await toolgate(["reply", "per_1", "once", "--session", "ses_1"], environment);
    expect(code).toBe(1);
    expect(stderr).toContain("answered by alice [ALREADY_ANSWERED]");
    expect(stderr).not.toContain("✓");
  });

  test("an ask that is not open is not answered", async () => {
    await start({ permissions: { listPermissions: () => ({ permissions: [ask] }) } });
    const { code, stderr } = await toolgate(["reply", "per_2", "once"], environment);
    expect(code).toBe(2);
    expect(stderr).toContain("no permission request per_2 is open");
    expect(server.replies).toEqual([]);
  });
});

test("asks and reply show the text of the files that a call runs, safe for a terminal", async () => {
  const files = ["run.sh", "gone.sh"].map((path) => ({ path, sha256: "ab", bytes: 9n, lines: 2 }));
  const shown = { ...ask, view: { tool: "bash", title: "npm test", files } };
  const open = {
    listPermissions: () => ({ permissions: [shown] }),
    readBoundFile({ permissionId, path }: { permissionId: string; path: string }) {
      if (path !== "run.sh") throw refused(Code.FailedPrecondition, "ASK_CHANGED", "it has changed");
      return { text: `echo ${permissionId}\nrm -rf \u001b[2J\n` };
    },
  };
  await start({ permissions: open });
  for (const words of [["asks"], ["reply", "per_1", "once"]]) {
    const { stdout, stderr } = await toolgate(words, environment);
    expect(stdout + stderr).toMatch(/run\.sh, 2 lines.*\n +echo per_1\n +rm -rf .*2J\n/);
    expect(stdout + stderr).not.toContain("\u001b[2J");
    expect(stdout + stderr).toMatch(/gone\.sh, 2 lines.*\n +its text is not shown: it has changed\n/);
  }
  expect(server.replies).toMatchObject([{ shown: Shown.PARTIAL }]);
  await toolgate(["reply", "per_1", "once", "--json"], environment);
  expect(server.replies[1]).toMatchObject({ shown: Shown.UNKNOWN });
});

test.each([
  [false, Shown.WHOLE],
  [true, Shown.PARTIAL],
])("reply shows a script of 300 lines, and asks says that it does not", async (truncated, shown) => {
  const files = [{ path: "long.sh", sha256: "ab", bytes: 9n, lines: 300 }];
  const text = Array.from({ length: 300 }, (_, i) => `echo ${i + 1}\n`).join("");
  await start({
    permissions: {
      listPermissions: () => ({ permissions: [{ ...ask, view: { tool: "bash", title: "npm test", files } }] }),
      readBoundFile: () => ({ text, truncated }),
    },
  });
  const list = await toolgate(["asks"], environment);
  expect(list.stdout).toMatch(/long\.sh, 300 lines.*\n +its text is not shown: it has more than 200 lines; .*inbox/);
  expect(list.stdout).not.toContain("echo 300");
  const { stderr } = await toolgate(["reply", "per_1", "once"], environment);
  expect(stderr).toMatch(/\n +echo 300\n/);
  expect(server.replies).toMatchObject([{ shown }]);
});

test("toolgate asks shows each open ask of every page", async () => {
  await start({
    permissions: {
      listPermissions: ({ pageToken }) =>
        pageToken === "" ? { permissions: [ask], nextPageToken: "2" } : { permissions: [{ ...ask, id: "per_2" }] },
    },
  });
  const { stdout } = await toolgate(["asks"], environment);
  expect(stdout).toContain("toolgate reply per_1 once");
  expect(stdout).toContain("toolgate reply per_2 once");
  const json = await toolgate(["asks", "--json"], environment);
  expect(
    json.stdout
      .trimEnd()
      .split("\n")
      .map((line) => JSON.parse(line).id),
  ).toEqual(["per_1", "per_2"]);
});

test("toolgate watch shows events with their numbers, from a given number", async () => {
  server.log(running, output("one\n"), completed("one\n"));
  const { child, sees, finished } = spawnToolgate(["watch", "ses_1", "--after", "1"], environment);
  await sees("completed");
  child.kill();
  const { stdout } = await finished;
  expect(stdout).toBe("    2  │ one\n    3  ✓ completed  bash  npm test  40 ms\n");
});

test("toolgate watch --json-form prints a line of opencode's JSON for each event, and nothing else", async () => {
  server.log(running, output("one\n"));
  const { child, sees, finished } = spawnToolgate(["watch", "ses_1", "--json-form"], environment);
  await sees('"seq":2');
  child.kill();
  const { stdout, stderr } = await finished;
  expect(stderr).toBe("");
  const lines = stdout.trimEnd().split("\n");
  expect(lines.map((line) => JSON.parse(line))).toMatchObject([
    {
      seq: 1,
      type: "message.part.updated",
      properties: {
        sessionID: "ses_1",
        part: { sessionID: "ses_1", callID: "c1", tool: "bash", state: { title: "npm test" } },
      },
    },
    { seq: 2, type: "output", properties: { callID: "c1", offset: 0, data: "b25lCg==" } },
  ]);
});

test("toolgate explain says which rule of which layer decides", async () => {
  await start({
    permissions: {
      explainPermission: ({ patterns }) => ({
        action: 3,
        decisions: patterns.map((pattern) => ({
          permission: "bash",
          pattern,
          action: 3,
          layer: 2,
          ruleIndex: 4,
          reason: "denied by the configuration",
          reasonCode: 1,
          moreMatches: 2,
          matches: [
            { layer: 3, source: "build", ruleIndex: 0, rule: { permission: "bash", pattern: "git *", action: 1 } },
            {
              layer: 2,
              ruleIndex: 4,
              rule: { permission: "*", pattern: "git p*", action: 3 },
              text: "x",
              decided: true,
              place: "/etc/toolgate.toml:7",
            },
          ],
        })),
      }),
    },
  });
  const { stdout, code } = await toolgate(["explain", "bash", "git push origin"], environment);
  expect(code).toBe(3);
  expect(stdout.split("\n")).toEqual([
    "deny   bash  git push origin",
    "       denied by the configuration [rule]",
    "         … 2 earlier rules match, too",
    '         agent 0 (build)  bash "git *" allow',
    '       → config /etc/toolgate.toml:7  * "git p*" deny  meets "x"',
    "",
  ]);
});

test("toolgate rules shows the rules of an agent list by list", async () => {
  await start({
    permissions: {
      listRules: ({ agent, place }) => ({
        agent,
        workspace: place.value ?? "",
        lists: [
          {
            layer: 2,
            rules: [
              { permission: "bash", pattern: "git push *", action: 3 },
              { permission: "bash", pattern: "ls *", action: 1 },
            ],
          },
          { layer: 10, source: ".opencode/config.toml", rules: [], problem: "line 2: no such action" },
        ],
      }),
    },
  });
  const asked = ["rules", "--agent", "plan", "--workspace", "default/app"];
  const { stdout, stderr } = await toolgate(asked, environment);
  expect(stderr).toContain("for plan in default/app");
  expect(stdout.split("\n")).toEqual([
    "config",
    '    0  bash "git push *" deny',
    '    1  bash "ls *" allow',
    "workspace (.opencode/config.toml)",
    "  everything asks: line 2: no such action",
    "",
  ]);
  const { code } = await toolgate([...asked, "--session", "ses_1"], environment);
  expect(code).toBe(2);
});

test("toolgate suggest shows what could change a terminal as escapes", async () => {
  await start({ permissions: { suggestRules: () => ({ toml: '"a\u009b2J\u202e" = "allow"\n' }) } });
  expect((await toolgate(["suggest"], environment)).stdout).toBe('"a\\x9b2J\\u202e" = "allow"\n');
});

test("toolgate output writes the bytes as they are into a pipe", async () => {
  const pieces = [Buffer.from("\x1b[31ma"), Buffer.from("b")];
  await start({
    tools: {
      readToolOutput: ({ range }) => {
        const first = range.case === "bytes" && range.value.offset === 0n;
        return { data: pieces[first ? 0 : 1] ?? Buffer.of(), end: !first };
      },
    },
  });
  expect(await toolgate(["output", "ses_1", "toolgate-output:out_1"], environment)).toMatchObject({
    code: 0,
    stdout: "\x1b[31mab",
  });
});

test("toolgate serve passes its flags on", async () => {
  const { stdout } = await toolgate(["serve", "--listen", "127.0.0.1:1", "--insecure-no-auth", "--unattended", "deny"]);
  expect(JSON.parse(stdout)).toEqual({ listen: "127.0.0.1:1", insecureNoAuth: true, unattended: "deny" });
});

describe("tokens", () => {
  const listTools = { tools: { listTools: () => ({}) } };

  test("a caller's command takes the local token, an approver's command the stored sign-in", async () => {
    await start({ ...listTools, permissions: { listPermissions: () => ({}) } });
    await leaveTokens();
    await toolgate(["tools"], environment);
    await toolgate(["asks"], environment);
    expect([...server.tokens]).toEqual(["Bearer caller-secret", "Bearer approver-secret"]);
  });

  test("a named file counts before the environment, and that before the local token", async () => {
    await start(listTools);
    await leaveTokens();
    await writeFile(join(folder, "mine"), "file-secret\n");
    await toolgate(["tools"], { ...environment, TOOLGATE_TOKEN: "environment-secret" });
    await toolgate(["tools", "--token-file", join(folder, "mine")], {
      ...environment,
      TOOLGATE_TOKEN: "environment-secret",
    });
    expect([...server.tokens]).toEqual(["Bearer environment-secret", "Bearer file-secret"]);
  });

  test("local tokens are not sent to other machines", async () => {
    await leaveTokens();

    const env = { TOOLGATE_DATA: folder };
    expect(findToken("caller", "http://localhost:1", env)).toBe("caller-secret");
    expect(findToken("caller", "https://127.0.0.1.example.com", env)).toBeUndefined();
    expect(findToken("caller", "https://tools.example.com", env)).toBeUndefined();
  });
});

describe("an error", () => {
  test("without a server says how to start one", async () => {
    await server.close();
    const { code, stdout, stderr } = await toolgate(["call", "bash", "{}"], environment);
    expect({ code, stdout }).toEqual({ code: 6, stdout: "" });
    expect(stderr).toContain(`error: no server at ${server.url}`);
    expect(stderr).toContain("next: start one with `toolgate serve`");
    await start();
  });

  test("of an approver who is not signed in says how to sign in", async () => {
    const unauthenticated = refused(Code.Unauthenticated, "UNAUTHENTICATED", "no token");
    await start({
      permissions: {
        listPermissions: () => {
          throw unauthenticated;
        },
      },
    });
    const { code, stderr } = await toolgate(["asks"], environment);
    expect(code).toBe(6);
    expect(stderr).toContain("next: not signed in: run `toolgate login`");
  });

  test("about a token says which file was tried", async () => {
    const unauthenticated = refused(Code.Unauthenticated, "UNAUTHENTICATED", "no token");
    await start({
      tools: {
        listTools: () => {
          throw unauthenticated;
        },
      },
    });
    const { code, stderr } = await toolgate(["tools"], environment);
    expect(code).toBe(6);
    expect(stderr).toContain(`no token was sent: ${join(folder, "tokens", "caller")} cannot be read`);
  });

  test.each([
    ["no JSON", ["call", "bash", "{"], "the input is not JSON"],
    ["JSON that is no object", ["call", "bash", "[1]"], "must be a JSON object"],
    ["a file that is not there", ["call", "bash", "@/no/such/file"], "/no/such/file cannot be read"],
    ["a missing argument", ["call", "bash"], "missing required argument 'json'"],
    ["a command that is not there", ["cal"], "Did you mean call?"],
    [
      "a workspace for a session that exists",
      ["call", "bash", "{}", "--session", "ses_1", "--workspace", "w"],
      "cannot be used with",
    ],
    ["a number that is none", ["watch", "ses_1", "--after", "x"], "It must be a whole number"],
    ["a message without a reject", ["reply", "per_1", "once", "-m", "why"], "--message is only for reject"],
    ["edited arguments with a reject", ["reply", "per_1", "reject", "--edit", "{}"], "--edit is only for once"],
    ["a time that is none", ["reply", "per_1", "always", "--for", "soon"], "such as 30m, 8h or 7d"],
    ["no number of calls", ["reply", "per_1", "always", "--times", "0"], "a number from 1 to 1000"],
    ["a limit without always", ["reply", "per_1", "once", "--times", "2"], "--times is only for always"],
    ["an address that is none", ["tools", "--server", "http://"], "is not the address of a server"],
    ["an address of another protocol", ["tools", "--server", "ftp://x"], "is not the address of a server"],
  ])("about %s exits 2 and says what to do next", async (_, args, words) => {
    const { code, stdout, stderr } = await toolgate(args, environment);
    expect({ code, stdout }).toEqual({ code: 2, stdout: "" });
    expect(stderr).toContain(words);
    expect(stderr).toContain("next: ");
  });
});

describe("toolgate upgrade --check", () => {
  test.each([
    [
      "of 0.1.0, whose requests show no call and whose format has no number",
      undefined,
      "a format without number",
      "asked again once the new version runs",
    ],
    ["of a later version", { view: { tool: "lsp_servers" } }, "format 1", "which stay so"],
  ])("of a service %s names calls that wait for tools that are gone", async (_, shown, format, outcome) => {
    const asked = { ...ask, ...shown, tool: { callId: "c1" } };
    await start({
      tools: {
        getServerInfo: () => ({ version: "0.1.0", ...(shown && { format: 1 }) }),
        getToolPart: ({ callId }) => ({ part: { ...part, callId, tool: callId === "c1" ? "lsp_servers" : "bash" } }),
      },
      permissions: {
        listPermissions: () => ({
          permissions: [asked, { ...asked, ...(shown && { view: { tool: "bash" } }), tool: { callId: "c2" } }],
        }),
      },
    });
    const { code, stdout } = await toolgate(["upgrade", "--check", "--token", "secret"], environment);
    expect(code).toBe(0);
    expect(stdout.replace(/ +/g, " ")).toContain(`store 0.1.0 with ${format}, this is 0.0.0 with format 1`);
    expect(stdout.replace(/ +/g, " ")).toContain(
      `ok calls 1 request open, ${outcome}\nwarning calls call c1 of ses_1 waits for lsp_servers, which is gone: it ends STALE_TOOL`,
    );
  });
});
