import { spawn } from "node:child_process";
import { once } from "node:events";
import { cp, mkdir, mkdtemp, readdir, readFile, realpath, rm, stat, writeFile } from "node:fs/promises";
import { connect as connectHttp2, createServer as createHttp2Server } from "node:http2";
import { type AddressInfo, createServer } from "node:net";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { text } from "node:stream/consumers";
import { expect, onTestFinished, test } from "vitest";
import { AgentService } from "../../gen/opencode/tool/v1/agent_service_pb.ts";
import { CredentialService } from "../../gen/opencode/tool/v1/credential_service_pb.ts";
import { ToolService } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { canaryLines } from "../../src/cli/connect/show.ts";
import { pagesOf } from "../../src/core/pages-of.ts";
import { startAtTerminal, toolgate } from "../cli/toolgate.ts";
import { main, programEntry } from "../main.ts";
import { clientOf, connect } from "./clients.ts";
import { useService } from "./service.ts";

const service = useService();
const approver = "approver-token-for-tests";
const fakeClaude = join(import.meta.dirname, "../cli/fake-claude.mjs");
const connectors = async () => (await clientOf(AgentService, service.url, approver).listConnectors({})).connectors;
const activeTokens = async () =>
  (await clientOf(CredentialService, service.url, approver).listCredentials({})).credentials.filter(
    ({ revoked }) => revoked === 0,
  );

const settings = `{
  // Ann's own choice
  "model": "opus",
  "hooks": {
    "PreToolUse": [{ "matcher": "Bash", "hooks": [{ "type": "command", "command": "ann.sh" }] }],
  },
}
`;

/** Creates a home with settings of Claude Code, and runs commands there as an approver. */
async function createHome(claude: string | undefined = settings) {
  const home = await realpath(await mkdtemp(join(tmpdir(), "toolgate-connect-")));
  const environment = { HOME: home, TOOLGATE_URL: service.url, TOOLGATE_TOKEN: approver };
  const run = (...args: string[]) => toolgate(args, environment);
  const file = join(home, ".claude/settings.json");
  await mkdir(join(home, ".claude"));
  if (claude !== undefined) await writeFile(file, claude);
  onTestFinished(async () => {
    for (const kind of ["claude", "opencode", "mcp"]) await run("disconnect", kind);
    await rm(home, { recursive: true });
  });
  const directory = join(home, ".config/toolgate/connect");
  const record = async (kind = "claude") => JSON.parse(await readFile(join(directory, `${kind}.json`), "utf8"));
  return { home, environment, run, settings: file, directory, record };
}

/** Runs `connect claude` in its own process, in the workspace of the service. */
async function connectHere(environment: Record<string, string>, ...flags: string[]) {
  const args = [programEntry(), "connect", "claude", "--json", ...flags];
  const env = { PATH: process.env.PATH, ...environment };
  const child = spawn(process.execPath, args, { cwd: service.workspace, env });
  const [stdout, stderr, [code]] = await Promise.all([text(child.stdout), text(child.stderr), once(child, "exit")]);
  expect(stderr).toBe("");
  return { stdout, code };
}

test("connect writes hooks and an MCP server next to what is there, and disconnect restores each file", async () => {
  const { home, run, settings: file, directory, record } = await createHome();
  const connected = await run("connect", "claude", "--yes", "--no-canary");
  expect(connected).toMatchObject({ code: 0 });
  expect(connected.stderr).toContain("+++ ");
  expect(connected.stdout).toContain("claude asks at ");
  expect(connected.stdout).toContain("approvals are advisory: agent and service run as the same user");
  const written = await readFile(file, "utf8");
  expect(written).toContain("// Ann's own choice");
  expect(written).toContain("ann.sh");
  const { hooks } = JSON.parse(written.replace(/\/\/.*/, "").replaceAll(/,(\s*[}\]])/g, "$1"));
  expect(Object.keys(hooks)).toEqual(["PreToolUse", "PostToolUse", "PostToolUseFailure"]);
  const [hook] = hooks.PreToolUse[1].hooks;
  expect(hook).toMatchObject({ type: "command", timeout: 660, onFailure: "block" });
  const proof = `--uid ${process.getuid?.()} --mcp tg_[0-9a-f]{8}`;
  const flags = `claude --server ${service.url} --token-file ${directory}/claude.host-token ${proof}`;
  expect(hook.command).toMatch(
    new RegExp(`^/bin/sh -c '/usr/bin/env -i HOME="\\$HOME" /.+ /.+/hook\\S+ ${flags} \\|\\| exit 2'$`),
  );

  const { mcpName, files } = await record();
  const { mcpServers } = JSON.parse(await readFile(join(home, ".claude.json"), "utf8"));
  expect(mcpName).toMatch(/^tg_[0-9a-f]{8}$/);
  expect(mcpServers[mcpName].args).toEqual(
    expect.arrayContaining(["mcp", "--server", service.url, "--token-file", join(directory, "claude.caller-token")]),
  );
  for (const name of await readdir(directory)) {
    expect((await stat(join(directory, name))).mode & 0o777).toBe(0o600);
    if (!name.endsWith("-token")) continue;
    const token = (await readFile(join(directory, name), "utf8")).trim();
    for (const { path } of files) expect(await readFile(path, "utf8")).not.toContain(token);
  }
  const [connector] = await connectors();
  expect(connector).toMatchObject({ kind: "claude", mcpName });
  expect(connector?.files).toEqual(expect.arrayContaining([file, join(directory, "claude.host-token")]));
  expect((await activeTokens()).map(({ roles }) => roles).toSorted()).toEqual([["caller"], ["host"]]);
  expect(await run("connect", "claude", "--yes")).toMatchObject({
    code: 1,
    stderr: expect.stringContaining("claude is already connected"),
  });

  expect(await run("disconnect", "claude")).toMatchObject({ code: 0 });
  expect(await readFile(file, "utf8")).toBe(settings);
  expect(await readdir(home)).not.toContain(".claude.json");
  expect(await readdir(directory)).toEqual([]);
  expect(await connectors()).toEqual([]);
  expect(await activeTokens()).toEqual([]);
});

test("a token that cannot create those of the agent is refused before a change is shown", async () => {
  const { environment } = await createHome();
  for (const [token, fact] of [
    ["caller-token-for-tests", "needs the role approver or admin; this token has caller"],
    ["unknown", "UNAUTHENTICATED"],
  ] as const) {
    const refused = await toolgate(["connect", "claude"], { ...environment, TOOLGATE_TOKEN: token });
    expect(refused).toMatchObject({ code: 6, stderr: expect.stringContaining(fact) });
    expect(refused.stderr).not.toContain("+++ ");
  }
});

test("a program in the cache of a runner writes its path nowhere", async () => {
  const { home, environment, settings: file } = await createHome();
  for (const cache of ["_npx/1098", "dlx-12", "bunx-0-toolgate@latest"]) {
    const copy = join(home, cache, "node_modules/toolgate");
    await cp(join(programEntry(), "../.."), copy, { recursive: true, verbatimSymlinks: true });
    const entry = join(copy, "bin/toolgate.js");
    const next = (command: string) => ({
      stderr: expect.stringMatching(new RegExp(`cache .*run its .*${command}`, "s")),
    });
    expect(await main(["connect", "claude", "--yes"], environment, entry)).toMatchObject(next("connect claude"));
    const install = ["install", "--root", join(home, "root"), "--workspace", home];
    expect(await main(install, environment, entry)).toMatchObject(next("install"));
  }
  expect(await readFile(file, "utf8")).toBe(settings);
  expect(await readdir(home)).not.toContain("root");
});

test("disconnect removes only its own entries from a file that was edited since", async () => {
  const { run, settings: file } = await createHome();
  await run("connect", "claude", "--yes", "--no-canary");
  const edited = (await readFile(file, "utf8")).replace("opus", "haiku");
  await writeFile(file, edited);
  expect(await run("disconnect", "claude")).toMatchObject({ code: 0 });
  const left = await readFile(file, "utf8");
  expect(left).toContain("haiku");
  expect(left).toContain("// Ann's own choice");
  expect(left).toContain("ann.sh");
  expect(left).not.toContain("claude --server");
  expect(left).not.toContain("PostToolUse");
});

test("a file that changed after the question is not overwritten, and the tokens are revoked", async () => {
  const { environment, settings: file } = await createHome();
  const running = startAtTerminal(["connect", "claude", "--no-canary"], environment);
  await running.sees("write these changes? [y/N]");
  await writeFile(file, "{}");
  running.child.stdin?.write("y\r");
  const { code, stdout } = await running.finished;
  expect(code).toBe(1);
  expect(stdout).toContain("has changed since the change was planned, so nothing was written");
  expect(await readFile(file, "utf8")).toBe("{}");
  expect(await activeTokens()).toEqual([]);
});

/** Starts what passes on requests to the service, apart from those of one method, which fail. */
async function startWithout(method: string): Promise<string> {
  const behind = connectHttp2(service.url);
  const front = createHttp2Server();
  front.on("stream", (stream, { ":authority": _, ...headers }) => {
    if (headers[":path"]?.endsWith(`/${method}`)) return void stream.respond({ ":status": 503 }, { endStream: true });
    const request = behind.request(headers);
    let trailers = {};
    request.on("response", ({ ...answer }) => {
      stream.respond(answer, { waitForTrailers: true });
      request.pipe(stream);
    });
    request.on("trailers", ({ ...found }) => {
      trailers = found;
    });
    stream.on("wantTrailers", () => stream.sendTrailers(trailers)).pipe(request);
  });
  await once(front.listen(0, "127.0.0.1"), "listening");
  onTestFinished(() => {
    front.close();
    behind.destroy();
  });
  return `http://127.0.0.1:${(front.address() as AddressInfo).port}`;
}

test("a connect whose connector is not registered restores the files, and the tokens are revoked", async () => {
  const { home, run, settings: file, directory } = await createHome();
  const failed = await run(
    "connect",
    "claude",
    "--yes",
    "--no-canary",
    "--server",
    await startWithout("RegisterConnector"),
  );
  expect(failed).toMatchObject({ code: 6, stderr: expect.stringContaining("+++ ") });
  expect(await readFile(file, "utf8")).toBe(settings);
  expect(await readdir(home)).not.toContain(".claude.json");
  expect(await readdir(directory)).toEqual([]);
  expect(await activeTokens()).toEqual([]);
  expect(await run("connect", "claude", "--yes", "--no-canary")).toMatchObject({ code: 0 });
});

test("nothing is written without a yes, nor into a file that is not JSON", async () => {
  const { run, settings: file } = await createHome('{\n  "a": [}\n');
  expect(await run("connect", "claude", "--yes")).toMatchObject({
    code: 1,
    stderr: expect.stringContaining(`${file}, line 2: this is not a JSON object, so nothing was written`),
  });
  await writeFile(file, "{}");
  expect(await run("connect", "claude")).toMatchObject({ code: 2, stderr: expect.stringContaining("add --yes") });
  expect(await readFile(file, "utf8")).toBe("{}");
  expect(await activeTokens()).toEqual([]);
});

test("check names each thing that is not as connect left it", async () => {
  const { run, settings: file, directory, record } = await createHome();
  expect(await run("connect", "--check")).toMatchObject({
    code: 2,
    stderr: expect.stringContaining("no agent is connected"),
  });
  await run("connect", "claude", "--yes", "--no-canary");
  const sound = await run("connect", "--check", "claude", "--no-canary");
  expect(sound).toMatchObject({ code: 0, stdout: expect.not.stringContaining("problem") });

  await writeFile(file, "{}");
  const { credentials, connectorId } = await record();
  await clientOf(CredentialService, service.url, approver).revokeCredential({ id: credentials[0].id });
  await clientOf(AgentService, service.url, approver).unregisterConnector({ id: connectorId });
  const { code, stdout } = await run("connect", "--check", "--no-canary", "--json");
  const { problems, enforcement } = JSON.parse(stdout);
  expect(code).toBe(1);
  expect(enforcement.state).toBe("advisory");
  expect(problems).toEqual([
    `${file} lacks the entry hooks.PreToolUse, or it was changed`,
    `${file} lacks the entry hooks.PostToolUse, or it was changed`,
    `${file} lacks the entry hooks.PostToolUseFailure, or it was changed`,
    expect.stringMatching(`the token in ${directory}/claude.host-token does not work: .*revoked`),
    "the service does not know the connector, so its files are not protected: connect claude again",
  ]);
});

test("check sends no token to a program of another user at the recorded address", async () => {
  const { run, directory, record } = await createHome();
  await run("connect", "claude", "--yes", "--no-canary");
  await writeFile(join(directory, "claude.json"), JSON.stringify({ ...(await record()), uid: 61_009 }));
  const { code, stdout } = await run("connect", "--check", "--no-canary", "--json");
  expect(code).toBe(1);
  expect(JSON.parse(stdout).problems).toEqual([
    expect.stringContaining(`its user is ${process.getuid?.()}, but 61009 is recorded`),
  ]);
});

test("check sends no token of an approver to a server that only the record names", async () => {
  const { home, environment, run, directory, record } = await createHome();
  await run("connect", "claude", "--yes", "--no-canary");
  const sent: string[] = [];
  const listener = createServer((connection) =>
    connection.once("data", (piece) => {
      sent.push(piece.toString("latin1"));
      connection.destroy();
    }),
  );
  await once(listener.listen(0, "127.0.0.1"), "listening");
  onTestFinished(() => void listener.close());
  const { port } = listener.address() as AddressInfo;
  const connected = await record();
  const file = join(directory, "claude.json");
  const token = join(home, "approver.token");
  await writeFile(file, JSON.stringify({ ...connected, server: `http://127.0.0.1:${port}`, credentials: [] }));
  await writeFile(token, approver);
  const check = ["connect", "--check", "claude", "--no-canary"];
  const { TOOLGATE_TOKEN: _, ...unnamed } = environment;
  for (const found of [
    await run(...check),
    await toolgate([...check, "--server", service.url, "--token-file", token], unnamed),
  ])
    expect(found).toMatchObject({ code: 1, stdout: expect.stringContaining(`add --server http://127.0.0.1:${port}`) });
  expect(await toolgate(check, unnamed)).toMatchObject({ code: 0 });
  expect(sent.join("")).toBe("");
  await writeFile(file, JSON.stringify(connected));
});

test("disconnect revokes no token and no connector that connect did not make", async () => {
  const { run, settings: file, directory, record } = await createHome();
  await run("connect", "claude", "--yes", "--no-canary");
  await run("connect", "mcp", "--yes");
  const path = join(directory, "claude.json");
  const [own, other] = [await record(), await record("mcp")];
  const written = await readFile(file, "utf8");
  const before = [await activeTokens(), await connectors()];
  for (const named of [{ credentials: other.credentials }, { connectorId: other.connectorId }]) {
    await writeFile(path, JSON.stringify({ ...own, ...named }));
    expect(await run("disconnect", "claude")).toMatchObject({
      code: 1,
      stderr: expect.stringContaining("did not make, so nothing was undone"),
    });
  }
  expect([await activeTokens(), await connectors()]).toEqual(before);
  expect(await readFile(file, "utf8")).toBe(written);
  await writeFile(path, JSON.stringify(own));
});

test("connect mcp prints an entry for any MCP client, and opencode gets one in its configuration", async () => {
  const { home, run, directory } = await createHome();
  const { code, stdout } = await run("connect", "mcp", "--yes");
  expect(code).toBe(0);
  const { mcpServers } = JSON.parse(stdout.slice(stdout.indexOf("{")));
  const [[name, { args }]] = Object.entries<{ args: string[] }>(mcpServers) as [[string, { args: string[] }]];
  expect(name).toMatch(/^tg_/);
  expect(args).toContain(join(directory, "mcp.caller-token"));

  await mkdir(join(home, ".config/opencode"), { recursive: true });
  const file = join(home, ".config/opencode/opencode.jsonc");
  await writeFile(file, '{\n  // mine\n  "theme": "dark"\n}\n');
  expect(await run("connect", "opencode", "--yes", "--no-canary")).toMatchObject({ code: 0 });
  expect(await readFile(file, "utf8")).toContain("// mine");
  expect(await readFile(file, "utf8")).toContain('"type": "local"');
  const plugin = join(home, ".config/opencode/plugin/toolgate.js");
  expect(await readFile(plugin, "utf8")).toMatch(/hook[^"]+","opencode"/);
  await writeFile(plugin, "// changed");
  expect(await run("connect", "--check", "opencode", "--no-canary")).toMatchObject({
    code: 1,
    stdout: expect.stringContaining(`${plugin} was changed`),
  });
  const disconnected = await run("disconnect", "opencode");
  expect(disconnected.stdout + disconnected.stderr).toContain(`${plugin} was changed, and stays`);
  expect(await readFile(plugin, "utf8")).toBe("// changed");
  await rm(plugin);
  expect(await run("connect", "opencode", "--yes", "--no-canary")).toMatchObject({ code: 0 });
  const listed = await run("connect", "--list");
  expect(listed.stdout).toMatch(/opencode of .*\n.*approvals are advisory[\s\S]*mcp of /);
});

test("the canary shows which native tools ask, run unasked or are disabled, and leaves nothing behind", async () => {
  const { home, environment, record } = await createHome("{}");
  const { stdout, code } = await connectHere(environment, "--yes", "--agent-program", fakeClaude);
  const { canary } = JSON.parse(stdout);
  expect(canary.problem).toBe("");
  expect(canary.rows).toEqual(
    expect.arrayContaining([
      { tool: "Bash", result: "asks" },
      { tool: "Write", result: "asks" },
      { tool: "Silent", result: "runs unasked" },
      { tool: "WebFetch", result: "disabled" },
      { tool: "CronCreate", result: "asks" },
      { tool: "Late", result: "asks" },
      { tool: "TaskStop", result: "not verified", reason: "Missing required parameter: task_id" },
    ]),
  );
  expect(canary.rows.map(({ tool }: { tool: string }) => tool)).not.toContain("mcp__tg_1__bash");
  expect(code).toBe(1);
  expect((await record()).canary).toEqual(canary);
  const shown = canaryLines(canary, (_, text) => text);
  expect(shown).toContain("  not verified  TaskStop: Missing required parameter: task_id");
  expect((await readdir(service.workspace)).filter((name) => name.includes("canary"))).toEqual([]);

  // The same agent, which no longer reads its hooks and repeats the IDs of its uses.
  const unhooked = join(home, "unhooked");
  const line = `CLAUDE_CONFIG_DIR=/nonexistent exec ${process.execPath} ${fakeClaude} "$@"`;
  await writeFile(unhooked, `#!/bin/sh\n${line}\n`, { mode: 0o755 });
  const again = JSON.parse((await connectHere(environment, "--check", "--agent-program", unhooked)).stdout);
  expect(again.canary.rows).toContainEqual({ tool: "Bash", result: "runs unasked" });

  const file = join(service.workspace, ".claude/settings.local.json");
  await mkdir(dirname(file));
  onTestFinished(() => rm(dirname(file), { recursive: true }));
  await writeFile(file, JSON.stringify({ disableAllHooks: true, env: { LD_PRELOAD: "/none.so" } }));
  const here = await connectHere(environment, "--check", "--no-canary");
  expect(JSON.parse(here.stdout).problems).toEqual(
    ["disableAllHooks", "env.LD_*"].map(
      (path) => `${file} switches off the hooks of Claude Code here (${path}): no tool asks`,
    ),
  );
  expect(here.code).toBe(1);
});

const listing = { tool: "bash", input: { command: "ls" } };

test("the canary finds its calls among many sessions and calls, and rejects no request of another one", async () => {
  const { home, environment, run, directory } = await createHome("{}");
  await run("connect", "claude", "--yes", "--no-canary");
  // More requests, and later more calls of the canary and more new sessions, than a page of a list has.
  const others = Array.from({ length: 101 }, (_, i) => `other-${i}`);
  const { tools } = connect(service, "caller");
  await Promise.all(others.map((callId) => tools.callTool({ ...listing, callId, waitMs: 0 })));
  const token = await readFile(join(directory, "claude.host-token"), "utf8");
  const agent = clientOf(ToolService, service.url, token.trim());
  await agent.beginCall({
    ...{ kind: "claude", foreignSession: "at work", foreignTool: "Bash", foreignCallId: "at-work", waitMs: 0 },
    ...{ input: { command: "touch busy" }, cwd: service.workspace },
  });
  const [program, creating] = [join(home, "agent"), join(home, "creating.mjs")];
  const headers = { "content-type": "application/json", authorization: "Bearer caller-token-for-tests" };
  const request = JSON.stringify({ method: "POST", body: "{}", headers });
  const url = `${service.url}/opencode.tool.v1.SessionService/CreateSession`;
  await writeFile(creating, `for (let i = 0; i < 101; i++) await fetch("${url}", ${request});`);
  const filling = join(home, "filling.mjs");
  const begun = JSON.stringify({
    ...{ kind: "claude", foreignSession: "fake", foreignTool: "Bash", waitMs: 0, input: { command: "ls" } },
  });
  await writeFile(
    filling,
    `const headers = ${JSON.stringify({ ...headers, authorization: `Bearer ${token.trim()}` })};
     const url = "${service.url}/opencode.tool.v1.ToolService/BeginCall";
     for (let i = 0; i < 101; i++) {
       const body = JSON.stringify({ ...${begun}, foreignCallId: "fill-" + i, cwd: process.cwd() });
       const answer = await fetch(url, { method: "POST", headers, body });
       if (!answer.ok) throw new Error(await answer.text());
     }`,
  );
  const programs = [`${filling} &&`, `${process.execPath} ${fakeClaude} "$@"`].join(" ");
  const lines = ["#!/bin/sh", `${process.execPath} ${programs}`, `${process.execPath} ${creating}`, ""];
  await writeFile(program, lines.join("\n"), { mode: 0o755 });

  const { stdout } = await connectHere(environment, "--check", "--agent-program", program);
  const { canary } = JSON.parse(stdout);
  expect(canary.problem).toBe("");
  for (const tool of ["Bash", "Write", "CronCreate"]) expect(canary.rows).toContainEqual({ tool, result: "asks" });
  const { permissions } = connect(service, "approver");
  const pages = await Array.fromAsync(pagesOf((page) => permissions.listPermissions(page)));
  const open = pages.flatMap((page) => page.permissions.map(({ tool }) => tool?.callId));
  expect(open.toSorted()).toEqual([...others, "at-work"].toSorted());
});

test("a canary that cannot reject ends the agent, which would wait for an answer, and says why", async () => {
  const { environment, run } = await createHome("{}");
  await run("connect", "claude", "--yes", "--no-canary");
  const listing = { ...environment, TOOLGATE_TOKEN: "watcher-token-for-tests" };
  const { stdout, code } = await connectHere(listing, "--check", "--agent-program", fakeClaude);
  const { canary } = JSON.parse(stdout);
  expect(canary.problem).toContain('the token "watcher" may not call');
  expect(canary.rows).toContainEqual(expect.objectContaining({ tool: "Write", result: "not verified" }));
  expect(code).toBe(1);
});

test("a canary that does not come to its end fails the command, which has connected the agent", async () => {
  const { environment, run } = await createHome("{}");
  const { stdout, code } = await connectHere(environment, "--yes", "--agent-program", "/bin/true");
  expect(JSON.parse(stdout).canary.problem).not.toBe("");
  expect(code).toBe(1);
  expect((await run("connect", "--list")).stdout).toContain("claude of ");
});

test("an HTTP hook is written on request only, takes its token from a variable, and is advisory", async () => {
  const { run, settings: file, directory } = await createHome("{}");
  const { code, stderr } = await run("connect", "claude", "--yes", "--no-canary", "--http-hook");
  expect(code).toBe(0);
  expect(stderr).toContain(`export TOOLGATE_HOOK_TOKEN="$(cat ${directory}/claude.host-token)"`);
  const [{ hooks }] = JSON.parse(await readFile(file, "utf8")).hooks.PreToolUse;
  expect(hooks).toEqual([
    {
      ...{ type: "http", url: expect.any(String), timeout: 660, onFailure: "block" },
      ...{ headers: { Authorization: "Bearer $TOOLGATE_HOOK_TOKEN" }, allowedEnvVars: ["TOOLGATE_HOOK_TOKEN"] },
    },
  ]);
  const [connector] = await connectors();
  expect(hooks[0].url).toBe(`${service.url}/hooks/claude?mcp=${connector?.mcpName}`);
  expect(connector).toMatchObject({ enforced: false });
  expect(await run("connect", "opencode", "--http-hook")).toMatchObject({ code: 2 });
});

test("an agent that works only in one workspace gets tokens for that one", async () => {
  const { run } = await createHome("{}");
  expect(await run("connect", "claude", "--yes", "--no-canary", "--workspace", "default")).toMatchObject({ code: 0 });
  expect((await activeTokens()).map(({ workspaces }) => workspaces)).toEqual([["default"], ["default"]]);
});
