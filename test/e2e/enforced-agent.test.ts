import { execFile } from "node:child_process";
import { once } from "node:events";
import { existsSync } from "node:fs";
import {
  appendFile,
  chmod,
  chown,
  mkdir,
  mkdtemp,
  readFile,
  realpath,
  rm,
  stat,
  symlink,
  writeFile,
} from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { createServer } from "node:tls";
import { createClient } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";
import { afterAll, beforeAll, expect, inject, test } from "vitest";
import { AgentService } from "../../gen/opencode/tool/v1/agent_service_pb.ts";
import { EnforcementState } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { type Certificates, makeCertificates } from "../edge/certificates.ts";
import { recordedClaudeHook } from "../hooks/recorded.ts";
import { main, programEntry } from "../main.ts";
import { bearer, connect, type Opens } from "./clients.ts";
import { createService, type Service } from "./service.ts";

// The service, the agent and its approver are three users of this machine. Accounts and settings of the machine exist in a private
// copy of /etc only.
const [serviceUid, agentUid, personUid] = [61_031, 61_032, 61_033];
const accounts = `toolgate:x:${serviceUid}:${serviceUid}::/:/bin/sh\ntg-ann:x:${agentUid}:${agentUid}::HOME:/bin/sh\n`;
const approver = "approver-token-for-tests";

let root = "";
let certificates: Certificates;
let service: Service;
let access: string[] = [];
const home = () => join(root, "ann");
const shop = () => join(home(), "shop");
const approverFile = () => join(root, "approver.token");
const settingsFile = () => join(home(), ".claude/settings.json");
/** A copy that belongs to root: this checkout may belong to anyone, and agents that could change it are not enforced. */
const installed = () => join(root, "installed-copy");
const nodeProgram = () => join(installed(), "node");
/** Services of `test:mutants` start from source. */
const hookPath = inject("program") === undefined ? "src/cli/hook/hook-program.ts" : "dist/hook.cjs";
const hookFile = () => join(installed(), "toolgate", hookPath);
const toolgate = () => `${nodeProgram()} ${join(installed(), "toolgate/bin/toolgate.js")}`;
const managedFile = () => join(root, "etc/claude-code/managed-settings.json");

interface Ended {
  code: number;
  stdout: string;
  stderr: string;
}

function run(program: string, args: string[], { uid, env = {}, input = "" }: RunOptions = {}): Promise<Ended> {
  const options = { env: { PATH: process.env.PATH, ...env }, cwd: "/", ...(uid !== undefined && { uid, gid: uid }) };
  return new Promise((resolve) => {
    const child = execFile(program, args, options, (error, stdout, stderr) =>
      resolve({ code: typeof error?.code === "number" ? error.code : 0, stdout, stderr }),
    );
    child.stdin?.on("error", () => undefined).end(input);
  });
}

interface RunOptions {
  uid?: number;
  env?: Record<string, string>;
  input?: string;
}

/** Runs a shell line as root on a machine that has the accounts. */
const runWithAccounts = (line: string) =>
  run("unshare", ["--mount", "sh", "-c", `mount --bind ${root}/etc /etc && ${line}`], {
    env: { HOME: root },
  });

const toolgateAsRoot = (args: string) => {
  const flags = `--server ${service.url} --ca ${root}/ca.pem --token-file ${approverFile()}`;
  return runWithAccounts(`${toolgate()} ${args} ${flags}`);
};

/** Runs a command in the native shell of the agent. */
const inAgentShell = (line: string, input = "") =>
  run("/bin/sh", ["-c", line], { uid: agentUid, env: { HOME: home() }, input });

/** Runs our program as the agent's user. */
const toolgateAsAgent = (args: string) =>
  runWithAccounts(
    `HOME=${home()} setpriv --reuid=${agentUid} --regid=${agentUid} --clear-groups ${toolgate()} ${args} --ca ${root}/ca.pem`,
  );

beforeAll(async () => {
  root = await realpath(await mkdtemp(join(tmpdir(), "toolgate-enforced-")));
  await chmod(root, 0o755);
  await mkdir(shop(), { recursive: true });
  await writeFile(join(shop(), "before.txt"), "before\n");
  for (const path of [home(), shop(), join(shop(), "before.txt")]) await chown(path, agentUid, agentUid);
  await chmod(home(), 0o700);
  await mkdir(installed(), { mode: 0o755 });
  const copied = [dirname(dirname(programEntry())), process.execPath].map((from, i) =>
    run("cp", ["-rL", from, join(installed(), i === 0 ? "toolgate" : "node")]),
  );
  expect(await Promise.all(copied)).toMatchObject([{ code: 0 }, { code: 0 }]);
  await writeFile(approverFile(), approver, { mode: 0o600 });
  expect(await run("cp", ["-a", "/etc", root])).toMatchObject({ code: 0 });
  await appendFile(join(root, "etc/passwd"), accounts.replace("HOME", home()));
  const install = await main(["install", "--root", join(root, "installed"), "--workspace", shop()], { HOME: root });
  access = install.stdout.split("\n").flatMap((line) => /^\s*(setfacl .*)$/.exec(line)?.[1] ?? []);
  for (const line of access) expect(await runWithAccounts(line)).toEqual({ code: 0, stdout: "", stderr: "" });

  certificates = await makeCertificates();
  const { ca, server } = certificates;
  await writeFile(join(root, "ca.pem"), ca.cert);
  for (const path of [dirname(server.keyFile), server.keyFile, server.certFile])
    await chown(path, serviceUid, serviceUid);
  const flags = ["--tls-cert", server.certFile, "--tls-key", server.keyFile];
  service = createService({
    settings: `require_other_user = true\n[workspace]\nshop = ${JSON.stringify(shop())}\n`,
    flags,
    uid: serviceUid,
  });
  await service.start();
  flags.push("--listen", new URL(service.url).host);
});
afterAll(async () => {
  await service?.close();
  await certificates?.remove();
  await rm(root, { recursive: true, force: true });
});

const openTls: Opens = (baseUrl, token) =>
  createGrpcTransport({ baseUrl, nodeOptions: { ca: certificates.ca.cert }, interceptors: [bearer(token)] });

test("the commands that install prints let the service and the owner change each other's files", async () => {
  expect(access).toEqual([
    `setfacl -m u:toolgate:x ${home()}`,
    `setfacl -R -m u:toolgate:rwX,d:u:toolgate:rwX,d:u:${agentUid}:rwX ${shop()}`,
  ]);
  const { tools, newSession } = connect(service, "caller", openTls);
  const call = { agent: "free", sessionId: await newSession({ workspace: "shop" }) };
  const write = (callId: string, command: string) =>
    tools.callTool({ ...call, callId, tool: "bash", input: { command } });
  const written = await write("c1", "echo service >> before.txt && echo service > made.txt");
  expect(written.part?.state).toMatchObject({ case: "completed", value: { metadata: { exit: 0 } } });
  expect(await inAgentShell(`cd ${shop()} && echo ann >> made.txt && echo ann > own.txt`)).toMatchObject({ code: 0 });
  expect(await readFile(join(shop(), "made.txt"), "utf8")).toBe("service\nann\n");
  expect((await write("c2", "cat own.txt")).part?.state.value).toMatchObject({ output: "ann\n" });
});

const enforcementOf = async (connector: string) => {
  const { connectors } = await createClient(AgentService, openTls(service.url, approver)).listConnectors({});
  return connectors.find(({ kind }) => kind === connector)?.enforcement;
};

test("hooks that a project can switch off are advisory, in each place that says so", async () => {
  for (const [kind, reason] of [
    ["claude", "a project can switch the hooks of Claude Code off"],
    ["opencode", "a plugin of a project runs in opencode after ours"],
  ] as const) {
    const connected = await toolgateAsRoot(`connect ${kind} --user tg-ann --yes --no-canary`);
    expect(connected).toMatchObject({ code: 0, stdout: expect.stringContaining(`approvals are advisory: ${reason}`) });
    expect(await enforcementOf(kind)).toMatchObject({ state: EnforcementState.ADVISORY });
    const info = await toolgateAsAgent(`connect --check ${kind} --no-canary`);
    expect(info).toMatchObject({ code: 0, stdout: expect.stringContaining(`approvals are advisory: ${reason}`) });
    const listed = await toolgateAsRoot("connect --list");
    expect(listed.stdout).toContain(`approvals are advisory: ${reason}`);
    expect(await toolgateAsRoot(`disconnect ${kind} --user tg-ann`)).toMatchObject({ code: 0 });
  }
  const notRoot = await toolgateAsAgent(`connect claude --system --server ${service.url} --token ${approver}`);
  expect(notRoot).toMatchObject({ code: 2, stderr: expect.stringContaining("only root can write the settings") });
});

/** Runs a command while everyone can change a file or directory. */
async function whileChangeable(path: string, run: () => Promise<Ended>): Promise<Ended> {
  const { mode } = await stat(path);
  await chmod(path, mode | 0o022);
  try {
    return await run();
  } finally {
    await chmod(path, mode);
  }
}

test("root connects the agent of another user at system level over https: approvals are enforced", async () => {
  const theirs = '{\n  "cleanupPeriodDays": 7\n}\n';
  await mkdir(dirname(managedFile()), { mode: 0o755 });
  await writeFile(managedFile(), theirs, { mode: 0o600 });
  const asSystem = "connect claude --system --user tg-ann --yes --no-canary";
  const refused = await whileChangeable(hookFile(), () => toolgateAsRoot(asSystem));
  expect(refused).toMatchObject({ code: 1, stderr: expect.stringContaining("can be changed by others than root") });
  const connected = await toolgateAsRoot(asSystem);
  expect(connected.stderr).toMatch(/allowManagedHooksOnly turns off the hooks of all other people.*than tg-ann/);
  expect(connected).toMatchObject({ code: 0, stdout: expect.stringContaining("approvals are enforced") });
  expect(await enforcementOf("claude")).toMatchObject({ state: EnforcementState.ENFORCED });
  const directory = join(home(), ".config/toolgate/connect");
  for (const path of [join(directory, "claude.host-token"), join(directory, "claude.json")])
    expect(await stat(path)).toMatchObject({ uid: agentUid, gid: agentUid });
  for (const path of [managedFile(), join(root, "etc/toolgate/connect/claude.json")])
    expect(await stat(path)).toMatchObject({ uid: 0, mode: 0o100644 });
  const digest = await run("openssl", [
    "x509",
    "-in",
    certificates.server.certFile,
    "-noout",
    "-fingerprint",
    "-sha256",
  ]);
  const pinned = digest.stdout.trim().split("=")[1]?.replaceAll(":", "").toLowerCase();
  const written = await readFile(managedFile(), "utf8");
  expect(written).toContain(`--certificate ${pinned} --ca ${root}/ca.pem`);
  // The user could put another program in place of our MCP server, so the hooks let none pass.
  expect(written).not.toContain("--mcp");
  expect(existsSync(join(home(), ".claude.json"))).toBe(false);
  expect(JSON.parse(written)).toMatchObject({ cleanupPeriodDays: 7, allowManagedHooksOnly: true });
  const check = "connect --check claude --user tg-ann --no-canary";
  expect(await toolgateAsRoot(check)).toMatchObject({ code: 0, stdout: expect.not.stringContaining("problem") });
  const again = await toolgateAsRoot("connect claude --system --user root --yes --no-canary");
  expect(again).toMatchObject({ code: 1, stderr: expect.stringContaining("of user tg-ann is connected") });

  // The configuration holds the tokens of the tests.
  await chmod(dirname(service.config), 0o755);
  expect(await enforcementOf("claude")).toMatchObject({
    state: EnforcementState.ADVISORY,
    reason: expect.stringContaining(`user ${agentUid} can read ${service.config}, with the token "approver"`),
  });
  await chmod(dirname(service.config), 0o700);

  await chmod(managedFile(), 0o666);
  const open = await toolgateAsRoot(check);
  expect(open).toMatchObject({ code: 1, stdout: expect.stringContaining("approvals are advisory") });
  expect(open.stdout).toContain("can be changed by others than root");
  await chmod(managedFile(), 0o644);

  for (const path of [nodeProgram(), dirname(hookFile())]) {
    const replaceable = await whileChangeable(path, () => toolgateAsRoot(check));
    expect(replaceable).toMatchObject({ code: 1, stdout: expect.stringContaining("approvals are advisory") });
    expect(replaceable.stdout).toContain(`${path} can be changed by others than root`);
  }

  const recordFile = join(root, "etc/toolgate/connect/claude.json");
  const recorded = await readFile(recordFile, "utf8");
  const loop = join(root, "loop");
  await symlink(loop, loop);
  await writeFile(recordFile, JSON.stringify({ ...JSON.parse(recorded), programs: [loop] }));
  const circling = await toolgateAsRoot(check);
  expect(circling).toMatchObject({ code: 1, stdout: expect.stringContaining("approvals are advisory") });
  expect(circling.stdout).toContain(`${loop} leads over more links than the system follows`);
  await writeFile(recordFile, recorded);
});

/** Runs the hook that `connect` wrote, as the agent does. */
async function hook(event: string, changes: object): Promise<Ended> {
  const { hooks } = JSON.parse(await readFile(managedFile(), "utf8"));
  const recorded = JSON.parse(recordedClaudeHook(shop(), event, "Bash").text);
  return await inAgentShell(hooks[event][0].hooks[0].command, JSON.stringify({ ...recorded, ...changes }));
}

test("the native shell of an enforced agent cannot answer its request; another user can", async () => {
  const use = { session_id: "s1", tool_use_id: "toolu_1", cwd: shop(), tool_input: { command: "make marker" } };
  const waiting = hook("PreToolUse", use);
  const { permissions } = connect(service, "watcher", openTls);
  const open = async () => (await permissions.listPermissions({})).permissions.map(({ id }) => id);
  await expect.poll(open).toHaveLength(1);
  const [id] = await open();

  const reply = `${toolgate()} reply ${id} once --server ${service.url} --ca ${root}/ca.pem`;
  const tokens = join(home(), ".config/toolgate/connect/claude");
  for (const [line, reason] of [
    [`${reply} --token-file ${tokens}.host-token`, "ROLE_MISSING"],
    [`TOOLGATE_TOKEN=${approver} ${reply}`, "OWN_CALL"],
    [`TOOLGATE_DATA=${service.data} ${reply}`, "token"],
    [`cat ${approverFile()}`, "Permission denied"],
    [`cat ${service.config}`, "Permission denied"],
    [`cat ${service.data}/tokens/approver`, "Permission denied"],
    [`kill ${service.pid}`, "not permitted"],
  ] as const) {
    const ended = await inAgentShell(line);
    expect([line, ended.code === 0, ended.stderr]).toEqual([line, false, expect.stringContaining(reason)]);
  }
  expect(await open()).toEqual([id]);

  const answered = await run("/bin/sh", ["-c", `TOOLGATE_TOKEN=${approver} ${reply}`], {
    uid: personUid,
    env: { HOME: "/nonexistent" },
  });
  expect(answered).toMatchObject({ code: 0 });
  expect(JSON.parse((await waiting).stdout)).toMatchObject({ hookSpecificOutput: { permissionDecision: "allow" } });
});

test("a service with another certificate gets no token, and the hook blocks", async () => {
  await service.stop();
  const { cert, key } = certificates.stranger;
  const sent: string[] = [];
  const other = createServer({ cert, key, ALPNProtocols: ["h2"] }, (socket) => {
    socket.on("data", (data) => sent.push(String(data))).on("error", () => undefined);
  }).listen(Number(new URL(service.url).port), "127.0.0.1");
  await once(other, "listening");
  const use = { session_id: "s1", tool_use_id: "toolu_2", cwd: shop(), tool_input: { command: "make other" } };
  const { code, stderr } = await hook("PreToolUse", use);
  expect([code, stderr]).toEqual([
    2,
    expect.stringContaining("is not the recorded service: its certificate has the SHA-256"),
  ]);
  const checked = await toolgateAsRoot("connect --check claude --user tg-ann --no-canary");
  expect([checked.code, checked.stdout]).toEqual([1, expect.stringContaining("is not the recorded service")]);
  expect(sent).toEqual([]);
  other.close();
  await once(other, "close");
  await service.start();
  expect(await toolgateAsAgent(`disconnect claude --server ${service.url} --token ${approver}`)).not.toMatchObject({
    code: 0,
  });
  expect(await toolgateAsRoot("disconnect claude --user tg-ann")).toMatchObject({ code: 0 });
  expect(existsSync(settingsFile())).toBe(false);
  expect(await readFile(managedFile(), "utf8")).toBe('{\n  "cleanupPeriodDays": 7\n}\n');
  expect(existsSync(join(root, "etc/toolgate/connect/claude.json"))).toBe(false);

  // Claude Code itself cannot verify the user of a service.
  const byHttp = await toolgateAsRoot("connect claude --user tg-ann --yes --no-canary --http-hook");
  expect(byHttp).toMatchObject({ code: 0, stdout: expect.stringContaining("approvals are advisory") });
  expect(await toolgateAsRoot("disconnect claude --user tg-ann")).toMatchObject({ code: 0 });
});
