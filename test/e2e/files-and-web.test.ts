import { execFileSync } from "node:child_process";
import { once } from "node:events";
import { mkdir, readFile } from "node:fs/promises";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import type { JsonObject } from "@bufbuild/protobuf";
import { Code, ConnectError } from "@connectrpc/connect";
import { describe, expect, onTestFinished, test } from "vitest";
import { PermissionAction as Action } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { PermissionReply } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { connect } from "./clients.ts";
import { read } from "./reading.ts";
import { useService } from "./service.ts";

const service = useService({ settings: '[permission.webfetch]\n"http://127.0.0.1:*" = "ask"\n' });

/** One rule that allows, the tool and its input, and shell lines that run in the workspace before. */
type Case = [what: string, permission: string, pattern: string, tool: string, input: JsonObject, setup?: string];

const write = (filePath: string) => ({ filePath, content: "x" });
const edit = (filePath: string) => ({ filePath, oldString: "", newString: "x" });

let folders = 0;

/** Plans a call in a fresh workspace; in its input `W` stands for the workspace's path. */
async function plan([, permission, pattern, tool, input, setup]: Case, rules: [string, string, Action][] = []) {
  folders += 1;
  const folder = `case-${folders}`;
  const directory = join(service.workspace, folder);
  await mkdir(join(directory, "src"), { recursive: true });
  if (setup !== undefined) execFileSync("bash", ["-ec", setup], { cwd: directory });
  const here = (text: string) => text.replaceAll("W/", `${directory}/`);
  const agent = connect(service, "caller");
  const { session } = await agent.sessions.createSession({ workspace: `default/${folder}` });
  const placed = Object.fromEntries(
    Object.entries(input).map(([key, value]) => [key, typeof value === "string" ? here(value) : value]),
  );
  const all: [string, string, Action][] = [[permission, here(pattern), Action.ALLOW], ...rules];
  try {
    return await agent.tools.planTool({
      sessionId: session?.id ?? "",
      tool,
      input: placed,
      rules: all.map(([permission, pattern, action]) => ({ permission, pattern, action })),
      onlyRules: true,
    });
  } catch (error) {
    expect(ConnectError.from(error).code).toBe(Code.InvalidArgument);
    return "refused" as const;
  }
}

describe("is never allowed by a rule that does not mean it:", () => {
  const cases: Case[] = [
    ["a neighbour with a longer name", "read", "W/*", "read", { filePath: "W/../case-1-evil/secret" }],
    ["the home folder", "read", "src/*", "read", { filePath: "~/.ssh/id_ed25519" }],
    ["climbing out", "read", "src/*", "read", { filePath: "src/../../secret" }],
    ["climbing within", "edit", "src/*", "write", write("src/../build.sh")],
    ["double slashes", "read", "src/*", "read", { filePath: "//etc//passwd" }],
    ["a link", "read", "src/*", "read", { filePath: "src/link" }, "ln -s /etc/passwd src/link"],
    ["a link to a folder", "read", "*", "read", { filePath: "src/link/passwd" }, "ln -s /etc src/link"],
    ["behind a link, up", "read", "*", "read", { filePath: "src/link/../passwd" }, "ln -s /etc/ssl src/link"],
    ["a link within", "edit", "src/*", "write", write("src/link"), "ln -s ../Makefile src/link"],
    ["a link that dangles", "edit", "src/*", "write", write("src/link"), "ln -s /tmp/made-by-nobody src/link"],
    ["a link to a link", "edit", "src/*", "edit", edit("src/a"), "ln -s b src/a; ln -s /tmp/made-by-nobody src/b"],
    ["links in a ring", "read", "*", "read", { filePath: "a" }, "ln -s b a; ln -s a b"],
    ["a hard link", "read", "*", "read", { filePath: "src/a" }, "echo x > .env; ln .env src/a"],
    ["a hard link that is written", "edit", "src/*", "write", write("src/a"), "echo x > other; ln other src/a"],
    ["a pipe", "read", "*", "read", { filePath: "pipe" }, "mkfifo pipe"],
    ["a pipe that is written", "edit", "*", "edit", edit("pipe"), "mkfifo pipe"],
    ["the environment of the service", "read", "*", "read", { filePath: "/proc/self/environ" }],
    ["the root through a process", "read", "*", "read", { filePath: "/proc/self/root/etc/passwd" }],
    ["a device", "read", "*", "read", { filePath: "/dev/zero" }],
    ["a NUL", "read", "*", "read", { filePath: "a.txt\0.png" }],
    ["git's hooks", "edit", "*", "write", write(".git/hooks/pre-commit")],
    ["git's hooks in capitals", "edit", "*", "write", write(".GIT/HOOKS/pre-commit")],
    [
      "git's hooks by a link",
      "edit",
      "*",
      "write",
      write("src/h/pre-commit"),
      "mkdir -p .git/hooks; ln -s ../.git/hooks src/h",
    ],
    ["git's settings", "edit", "*", "edit", edit(".git/config")],
    ["CI", "edit", "*", "write", write(".github/workflows/x.yml")],
    ["a start file", "edit", "*", "write", write(".bashrc")],
    ["a package manager's", "edit", "*", "write", write("web/.npmrc")],
    ["an editor's", "edit", "*", "write", write(".vscode/settings.json")],
    ["an agent's", "edit", "*", "write", write(".claude/settings.json")],
    ["policy", "edit", "*", "edit", edit(".opencode/config.toml")],
    ["policy by a link", "edit", "*", "edit", edit("x"), "ln -s toolgate.toml x"],
    ["a glob that climbs", "glob", "*", "glob", { pattern: "../*" }],
    ["a glob with braces that climb", "glob", "*", "glob", { pattern: "{src,../..}/*.pem" }],
    ["a glob with nested braces", "glob", "*", "glob", { pattern: "{a,{b,..}}/*" }],
    ["a glob with `..` behind a star", "glob", "*", "glob", { pattern: "*/../../*" }],
    ["an absolute glob", "glob", "*", "glob", { pattern: "/etc/*" }],
    ["a glob of the home folder", "glob", "*", "glob", { pattern: "~/.ssh/*" }],
    ["a glob through a link", "glob", "*", "glob", { pattern: "src/l/*" }, "ln -s /etc src/l"],
    ["a glob in a folder outside", "glob", "*", "glob", { pattern: "*", path: "/etc" }],
    ["a search outside", "grep", "*", "grep", { pattern: "PRIVATE KEY", path: "/home/u/.ssh" }],
    ["a search that climbs", "grep", "*", "grep", { pattern: "x", path: "src/../.." }],
    ["a search through a link", "grep", "*", "grep", { pattern: "x", path: "src/l" }, "ln -s /etc src/l"],
    ["a list outside", "list", "*", "list", { path: ".." }],
    ["another port", "webfetch", "https://api.example.com/*", "webfetch", { url: "https://api.example.com:8443/x" }],
    ["another scheme", "webfetch", "https://api.example.com/*", "webfetch", { url: "http://api.example.com/x" }],
    ["a longer host", "webfetch", "https://api.example.com*", "webfetch", { url: "https://api.example.com.evil.net/" }],
    [
      "a path that climbs",
      "webfetch",
      "https://a.example/public/*",
      "webfetch",
      { url: "https://a.example/public/../admin" },
    ],
    [
      "a path that climbs in escapes",
      "webfetch",
      "https://a.example/p/*",
      "webfetch",
      { url: "https://a.example/p/..%2fadmin" },
    ],
    [
      "a user name that looks like a host",
      "webfetch",
      "https://a.example*",
      "webfetch",
      { url: "https://a.example@evil.net/" },
    ],
    ["a line break", "webfetch", "*", "webfetch", { url: "http://example.com/%0d%0aX-A:1\r\nHost: evil" }],
    ["a local file", "webfetch", "*", "webfetch", { url: "file:///etc/passwd" }],
    ["a data URL", "webfetch", "*", "webfetch", { url: "data:text/html,<script>1</script>" }],
    ["this machine", "webfetch", "*", "webfetch", { url: "http://0/" }],
    ["the cloud's credentials", "webfetch", "*", "webfetch", { url: "http://[::ffff:a9fe:a9fe]/latest/meta-data" }],
    ["a very long address", "webfetch", "*", "webfetch", { url: `https://example.com/${"a".repeat(100_000)}` }],
  ];
  test.each(cases)("%s", async (...given) => {
    const planned = await plan(given);
    if (planned === "refused") return;
    expect(planned.action).not.toBe(Action.ALLOW);
    // Nobody is shown what is outside before they said yes.
    expect(planned.preview?.diff ?? "").toBe("");
  });

  test("a denied file in capitals is denied", async () => {
    const planned = await plan(["", "read", "*", "read", { filePath: ".ENV" }], [["read", "*.env", Action.DENY]]);
    expect(planned).toMatchObject({ action: Action.DENY });
  });
});

describe("runs without a question:", () => {
  const cases: Case[] = [
    ["a file", "read", "*", "read", { filePath: "src/a.ts" }, "echo x > src/a.ts"],
    ["by its absolute path", "read", "*", "read", { filePath: "W/src/a.ts" }, "echo x > src/a.ts"],
    ["by a detour within", "read", "src/*", "read", { filePath: "./src/../src//a.ts" }, "echo x > src/a.ts"],
    ["by a link within", "read", "src/*", "read", { filePath: "src/l" }, "echo x > src/a.ts; ln -s a.ts src/l"],
    [
      "an installed file",
      "read",
      "*",
      "read",
      { filePath: "node_modules/x/i.js" },
      "mkdir -p node_modules/x; echo 1 > s; ln s node_modules/x/i.js",
    ],
    ["a new file", "edit", "src/*", "write", write("src/new/a.ts")],
    ["a new file by edit", "edit", "*", "edit", edit("docs/a.md")],
    ["a file that is only called so", "edit", "*", "write", write("src/git/config.ts")],
    ["a glob", "glob", "*", "glob", { pattern: "src/**/*.{ts,tsx}" }],
    ["a glob of a hidden folder", "glob", "*", "glob", { pattern: ".github/**/*.yml" }],
    ["a glob by a path", "glob", "*", "glob", { pattern: "*", path: "W/src" }],
    ["a search", "grep", "*", "grep", { pattern: "(a+)+$", path: "src" }],
    ["a search with a glob", "grep", "*", "grep", { pattern: "..", include: "*.ts" }],
    ["a list", "list", "*", "list", { path: "src" }],
    ["a page", "webfetch", "https://example.com/*", "webfetch", { url: "https://example.com/docs" }],
    [
      "a page in capitals",
      "webfetch",
      "https://example.com/*",
      "webfetch",
      { url: "https://EXAMPLE.com:443/docs?q=1#x" },
    ],
    [
      "a page that has dots",
      "webfetch",
      "https://example.com/*",
      "webfetch",
      { url: "https://example.com/v1.2/..a/b%20c?d=../e" },
    ],
    ["any page", "webfetch", "*", "webfetch", { url: "http://example.com/" }],
    [
      "a host by a wildcard",
      "webfetch",
      "https://*.example.com/*",
      "webfetch",
      { url: "https://docs.example.com/a/b" },
    ],
    ["a server of one's own", "webfetch", "http://localhost:3000/*", "webfetch", { url: "http://localhost:3000/api" }],
    ["a public address", "webfetch", "https://*", "webfetch", { url: "https://1.1.1.1/dns-query" }],
  ];
  test.each(cases)("%s", async (...given) => {
    expect(await plan(given)).toMatchObject({ action: Action.ALLOW });
  });
});

test("a page is fetched once a person has seen where from, and again without them if they said always", async () => {
  const server = createServer((request, response) => {
    if (request.url === "/moved") return response.writeHead(302, { location: "http://localhost/" }).end();
    response.writeHead(200, { "content-type": "text/html" }).end(`<h1>${request.url}</h1>`);
  }).listen(0, "127.0.0.1");
  await once(server, "listening");
  onTestFinished(() => void server.close());
  const { port } = server.address() as AddressInfo;
  const [agent, person] = [connect(service, "caller"), connect(service, "approver")];
  const sessionId = await agent.newSession();
  const call = (callId: string, path: string) => ({
    sessionId,
    callId,
    tool: "webfetch",
    input: { url: `http://0x7f.1:${port}${path}` },
  });

  const stream = read(agent.tools.executeTool(call("w1", "/docs/../a")));
  const ask = await stream.until("permissionAsked");
  expect(ask).toMatchObject({
    permission: "webfetch",
    patterns: [`http://127.0.0.1:${port}/a`],
    preview: { hosts: [`127.0.0.1:${port}`] },
  });
  await person.permissions.respondToPermission({ sessionId, permissionId: ask.id, reply: PermissionReply.ALWAYS });
  expect((await stream.end()).state).toMatchObject({ case: "completed", value: { output: "# /a" } });

  const again = await agent.tools.callTool(call("w2", "/a#part"));
  expect(again.part?.state).toMatchObject({ case: "completed", value: { output: "# /a" } });

  const moved = read(agent.tools.executeTool(call("w3", "/moved")));
  const asked = await moved.until("permissionAsked");
  await person.permissions.respondToPermission({ sessionId, permissionId: asked.id, reply: PermissionReply.ONCE });
  const failed = (await moved.end()).state;
  expect(failed).toMatchObject({
    case: "error",
    value: { error: expect.stringContaining("localhost is a name of this machine") },
  });
});

test("an approval of a protected file is for once: nothing can be saved for it", async () => {
  const planned = await plan(["", "edit", "*", "write", write(".git/hooks/pre-commit")]);
  if (planned === "refused") throw new Error("it was refused");
  expect(planned.asks).toMatchObject([{ permission: "edit", patterns: [".git/hooks/pre-commit"], offers: [] }]);
  expect(planned.decisions[0]?.reason).toContain("git's own files");
});

test("what the tools say of rules is what the service judges by: grep shows nothing of a file that rules ask about", async () => {
  const agent = connect(service, "caller");
  const sessionId = await agent.newSession();
  execFileSync("bash", ["-c", "mkdir -p own; echo KEY=1 > own/.env; echo KEY=2 > own/a.txt"], {
    cwd: service.workspace,
  });
  const { part } = await agent.tools.callTool({
    sessionId,
    callId: "g1",
    tool: "grep",
    input: { pattern: "KEY", path: "own" },
  });
  const completed = part?.state;
  if (completed?.case !== "completed") throw new Error(`the search ended ${completed?.case}`);
  expect(completed.value.output).toContain("Line 1: KEY=2");
  expect(completed.value.output).toContain("1 file is left out");
  expect(completed.value.output).not.toContain("KEY=1");
  expect(await readFile(join(service.workspace, "own/.env"), "utf8")).toBe("KEY=1\n");
});
