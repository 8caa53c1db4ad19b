import { spawn } from "node:child_process";
import { once } from "node:events";
import { chown, mkdir, mkdtemp, readdir, readFile, rm, stat, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { beforeAll, expect, onTestFinished, test } from "vitest";
import { CredentialService } from "../../gen/opencode/tool/v1/credential_service_pb.ts";
import { PermissionService } from "../../gen/opencode/tool/v1/permission_service_pb.ts";
import { toolgate as runToolgate } from "../cli/toolgate.ts";
import { main, programEntry } from "../main.ts";
import { appToken, botToken, slackIds, startSlack } from "../reach/slack-provider.ts";
import { clientOf } from "./clients.ts";
import { read } from "./reading.ts";
import { useService } from "./service.ts";

const service = useService({ ownTokens: true });
/** The token of an approver, which the operator created. */
let approver = "";
beforeAll(async () => {
  const { stdout } = await main(["token", "create", "--role", "approver", "--data", service.data], {
    HOME: service.workspace,
  });
  approver = stdout.trim();
  const { code } = await clientOf(CredentialService, service.url, approver).createCode({});
  expect(await toolgate("login", code)).toMatchObject({ code: 0, stdout: expect.stringContaining("signed in at") });
});

/** Runs the product's command, without a terminal, against the service: in this process, unless it starts a service itself. */
async function toolgate(...args: string[]): Promise<{ code: number | null; stdout: string; stderr: string }> {
  const env = { HOME: service.workspace, TOOLGATE_URL: service.url, TOOLGATE_DATA: service.data };
  const startsService = ["run", "serve", "trust", "check-config"].includes(args[0] ?? "");
  return startsService ? await main(args, env) : await runToolgate(args, env);
}

test("call prints the output alone on stdout and exits 0", async () => {
  await writeFile(join(service.workspace, "a.txt"), "hello\n");
  const { code, stdout, stderr } = await toolgate("call", "read", '{"filePath": "a.txt"}');
  expect(code).toBe(0);
  expect(stdout).toContain("1: hello");
  expect(stderr).toContain("completed");
});

test("call that needs a person says how to answer; reply from elsewhere lets it go on", async () => {
  const call = toolgate("call", "bash", '{"command": "echo approved"}');
  const person = read(clientOf(PermissionService, service.url, approver).watchPermissions({}));
  const { id } = await person.until("permissionAsked");
  expect((await toolgate("asks")).stdout).toContain("echo approved");
  expect(await toolgate("reply", id, "always")).toMatchObject({ code: 0 });
  expect(await call).toMatchObject({ code: 0, stdout: "approved\n" });
  expect((await call).stderr).toContain(`toolgate reply ${id} once`);
  expect((await toolgate("grants")).stdout).toContain('bash "echo approved"');
});

test("call exits by the outcome: 2 for bad input, 3 for a refusal, 1 for a failure", async () => {
  expect(await toolgate("call", "read", "{}")).toMatchObject({ code: 2 });
  expect(await toolgate("call", "nothing", "{}")).toMatchObject({ code: 2 });
  expect(await toolgate("call", "read", '{"filePath": "missing.txt"}')).toMatchObject({ code: 1 });
  expect(
    await toolgate("call", "read", JSON.stringify({ filePath: join(service.data, "tokens", "caller") })),
  ).toMatchObject({ code: 3 });
});

test("--json prints one event a line and nothing else", async () => {
  const { stdout } = await toolgate("--json", "call", "echo", '{"text": "x"}');
  const events = stdout
    .trim()
    .split("\n")
    .map((line) => JSON.parse(line));
  expect(
    events.map(({ seq, part }) => [seq, Object.keys(part).find((key) => /pending|running|completed/.test(key))]),
  ).toEqual([
    ["1", "pending"],
    ["2", "running"],
    ["3", "completed"],
  ]);
});

test("run needs no server, and refuses what it cannot ask about", async () => {
  const folder = await mkdtemp(join(tmpdir(), "toolgate-run-"));
  onTestFinished(() => rm(folder, { recursive: true, force: true }));
  await writeFile(join(folder, "b.txt"), "from run\n");
  const shown = await toolgate("run", "read", '{"filePath": "b.txt"}', "--workspace", folder);
  expect(shown).toMatchObject({ code: 0, stdout: expect.stringContaining("1: from run") });
  const refused = await toolgate("run", "bash", '{"command": "touch c.txt"}', "--workspace", folder);
  expect(refused).toMatchObject({ code: 3, stderr: expect.stringContaining("terminal") });
  await expect(readFile(join(folder, "c.txt"))).rejects.toThrow("ENOENT");
});

test("run lets no tool into the data directory of the user's service, and leaves its store alone", async () => {
  const folder = await mkdtemp(join(tmpdir(), "toolgate-run-"));
  onTestFinished(() => rm(folder, { recursive: true, force: true }));
  const workspace = join(folder, "work");
  await mkdir(workspace);
  const config = join(folder, "toolgate.toml");
  await writeFile(config, 'store = "redis://127.0.0.1:9"\npermission = "allow"\n');
  const run = (tool: string, input: object) =>
    toolgate("run", tool, JSON.stringify(input), "--workspace", workspace, "--config", config);
  for (const [tool, filePath, content] of [
    ["read", "credentials.json"],
    ["write", "trust/a.json", "{}"],
  ] as const)
    expect(await run(tool, { filePath: join(service.data, filePath), content })).toMatchObject({
      code: 3,
      stderr: expect.stringContaining("data directory"),
    });
  // A command may spell the path so that nothing recognises it; then the sandbox has nothing there.
  const command = `d=${service.data.slice(0, -1)}; ls -A "$d"${service.data.slice(-1)} | wc -l`;
  expect(await run("bash", { command })).toMatchObject({ code: 0, stdout: "0\n" });
});

test("run leaves the channels and the address for health to the user's service", async () => {
  const folder = await mkdtemp(join(tmpdir(), "toolgate-run-"));
  onTestFinished(() => rm(folder, { recursive: true, force: true }));
  const workspace = join(folder, "work");
  await mkdir(workspace);
  const [slack, config] = [await startSlack(), join(folder, "toolgate.toml")];
  await writeFile(join(folder, "slack"), `${botToken}\n${appToken}\n`);
  const settings = [
    `public_url = "https://gate.example"\nhealth_listen = "${new URL(service.url).host}"\npermission = "allow"`,
    `[channel.ops]\nkind = "slack"\nurl = "${slack.url}"\nsecret_file = "${folder}/slack"`,
    `to = "${slackIds.channel}"\nteam = "${slackIds.team}"\n[[notify]]\nchannels = ["ops"]\n`,
  ];
  await writeFile(config, settings.join("\n"));
  const input = JSON.stringify({ command: "sleep 1; echo done" });
  const ran = await toolgate("run", "bash", input, "--workspace", workspace, "--config", config);
  expect(ran).toMatchObject({ code: 0, stdout: "done\n" });
  expect(slack.opened()).toBe(0);
});

test("run offers the workspace's own tools where they are trusted", async () => {
  const folder = await mkdtemp(join(tmpdir(), "toolgate-run-"));
  onTestFinished(() => rm(folder, { recursive: true, force: true }));
  const [workspace, data] = [join(folder, "work"), join(folder, "data")];
  await mkdir(join(workspace, ".opencode/tool"), { recursive: true });
  const code = `export default { description: "Say hello.", args: {}, execute: async () => "hello from the workspace" };`;
  await writeFile(join(workspace, ".opencode/tool/hello.js"), code);
  const config = join(folder, "toolgate.toml");
  await writeFile(config, `data = "${data}"\n[permission]\nhello = "allow"\n`);
  const run = () => toolgate("run", "hello", "{}", "--workspace", workspace, "--config", config);
  expect(await run()).toMatchObject({ code: 2, stderr: expect.stringContaining("hello") });
  expect(await toolgate("trust", workspace, "--config", config)).toMatchObject({ code: 0 });
  expect(await run()).toMatchObject({ code: 0, stdout: expect.stringContaining("hello from the workspace") });
});

test("trust leaves what the user of the service can read, and shows names that could change a terminal as escapes", async () => {
  const folder = await mkdtemp(join(tmpdir(), "toolgate-run-"));
  onTestFinished(() => rm(folder, { recursive: true, force: true }));
  const tool = join(folder, "work\u009b2J/.opencode/tool");
  await mkdir(tool, { recursive: true });
  await writeFile(join(tool, "\u202ehello.js"), "export default {};");
  const data = join(folder, "data");
  const refused = await toolgate("trust", join(folder, "work\u009b2J"), "--data", data);
  expect(refused).toMatchObject({ code: 1, stderr: expect.stringContaining(`there is no data directory ${data}`) });
  await mkdir(data);
  // Root trusts for the service, which has another user.
  const owner = process.getuid?.() || 12_345;
  await chown(data, owner, owner);
  const { code, stdout } = await toolgate("trust", join(folder, "work\u009b2J"), "--data", data);
  const [record = ""] = await readdir(join(data, "trust"));
  for (const path of ["trust", `trust/${record}`]) expect((await stat(join(data, path))).uid).toBe(owner);
  expect([code, stdout]).toEqual([0, expect.stringMatching(/work\\x9b2J is trusted\n {2}.*\\u202ehello\.js/)]);
});

test("without a server the error names the next step", async () => {
  const { code, stderr } = await toolgate("--server", "http://127.0.0.1:9", "call", "echo", '{"text": "x"}');
  expect(code).toBe(6);
  expect(stderr).toContain("toolgate serve");
});

test("a refused start prints the next step and asks for no bug report", async () => {
  const { code, stderr } = await toolgate("serve", "--listen", "127.0.0.1:0", "--workspace", service.workspace);
  expect(code).toBe(1);
  expect(stderr).toContain(`in use by process ${service.pid}: stop it, or start with another data directory`);
  expect(stderr).not.toContain("next:");
});

test.each([
  [["call", "echo", '{"text": "x"}']],
  [["tools", "echo"]],
  [["asks"]],
  [["plan", "echo", '{"text": "x"}']],
  [["explain", "bash", "ls"]],
  [["grants"]],
  [["stats"]],
  [["suggest"]],
  [["audit", "export"]],
  [["audit", "verify"]],
  [["check-config", "/dev/null"]],
  [["trust", "."]],
  [["completion", "fish"]],
])("%j with --json prints nothing but lines of JSON", async (args) => {
  const { code, stdout } = await toolgate(...args, "--json");
  expect(code).toBe(0);
  for (const line of stdout.split("\n").slice(0, -1)) expect(JSON.parse(line)).toBeTypeOf("object");
});

test("serve --json prints its address", async () => {
  const folder = await mkdtemp(join(tmpdir(), "toolgate-serve-"));
  const flags = ["--listen", "127.0.0.1:0", "--data", join(folder, "data"), "--workspace", service.workspace];
  const child = spawn(process.execPath, [programEntry(), "serve", "--json", ...flags], {
    env: { PATH: process.env.PATH, HOME: folder },
    stdio: ["ignore", "pipe", "ignore"],
  });
  onTestFinished(async () => {
    child.kill("SIGKILL");
    await rm(folder, { recursive: true, force: true, maxRetries: 10, retryDelay: 50 });
  });
  const [line] = await once(createInterface({ input: child.stdout }), "line");
  expect(JSON.parse(line)).toMatchObject({
    url: expect.stringMatching(/^http:\/\/127\.0\.0\.1:\d+$/),
    version: "0.1.0",
    sign_in_code: expect.stringMatching(/^(\w{4}-){3}\w{4}$/),
  });
});
