import { execFile } from "node:child_process";
import { once } from "node:events";
import { existsSync } from "node:fs";
import { mkdir, mkdtemp, readdir, readFile, realpath, rm, writeFile } from "node:fs/promises";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { homedir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { expect, onTestFinished, test, vi } from "vitest";
import { DecisionKind, PermissionAction } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { PermissionReply, type PermissionRequest } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { NetworkAccess, SandboxState } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { programEntry } from "../main.ts";
import { processesNamed, untilDead } from "../tools/processes.ts";
import { connect } from "./clients.ts";
import { read } from "./reading.ts";
import { startService } from "./service.ts";

test("a command writes outside the workspace only where a person let it, and sees neither configuration nor tokens", async () => {
  const outside = await realpath(await mkdtemp(join(homedir(), ".toolgate-test-")));
  onTestFinished(() => rm(outside, { recursive: true }));
  await mkdir(join(outside, "mine"));
  const service = await startService();
  const [agent, person] = [connect(service, "caller"), connect(service, "approver")];
  expect(await agent.tools.getServerInfo({})).toMatchObject({
    sandbox: SandboxState.WORKSPACE_WRITE,
    sandboxNetwork: true,
    sandboxNetworkAccess: NetworkAccess.PROXY,
    sandboxProblem: "",
    sandboxDetails: {
      layers: ["disk", "processes", "files", "network", "system_calls", "limits"],
      warnings: process.getuid?.() === 0 ? [expect.stringContaining("the service runs as root")] : [],
    },
  });
  const sessionId = await agent.newSession();
  const touch = { command: `touch ${outside}/mine/file`, edits: [`${outside}/mine/file`] };
  const stream = read(agent.tools.executeTool({ sessionId, callId: "c1", tool: "bash", input: touch }));
  const approve = async ({ id: permissionId }: PermissionRequest) =>
    await person.permissions.respondToPermission({ sessionId, permissionId, reply: PermissionReply.ONCE });
  for (const _ of ["external_directory", "bash", "edit"]) await approve(await stream.until("permissionAsked"));
  const { value } = (await stream.end()).state;
  expect(value).toMatchObject({ metadata: { exit: 0 } });
  expect(value && "metadata" in value && value.metadata?.sandbox).toEqual({
    profile: "workspace-write",
    network: "proxy",
    layers: ["disk", "processes", "files", "system_calls", "limits", "network"],
  });
  expect(await readdir(join(outside, "mine"))).toEqual(["file"]);

  // What hides a path from the analysis does not hide it from the wall.
  const spy = {
    command: `up=$(dirname "$PWD"); cat $up/*.toml; find $up; f=/$(echo ${outside.slice(1)})/file; touch $f; true`,
  };
  const call = { sessionId, callId: "c2", tool: "bash", input: spy };
  const asked = read(agent.tools.executeTool(call));
  await approve(await asked.until("permissionAsked"));
  const { state } = await asked.end();
  expect(state.value).toMatchObject({ output: expect.stringContaining("No such file or directory") });
  const shown = JSON.stringify(state.value);
  expect(shown).toContain(`${service.workspace}\\n`);
  expect(shown).not.toContain(service.data);
  expect(shown).not.toContain("-token");
  expect(await readdir(outside)).toEqual(["mine"]);
});

test("a command does not see what rules of the workspace and the session deny to read", async () => {
  const service = await startService();
  const agent = connect(service, "caller");
  await mkdir(join(service.workspace, ".opencode"));
  await writeFile(join(service.workspace, ".opencode/config.toml"), '[permission.read]\n"*.key" = "deny"\n');
  for (const name of ["a.key", "a.pem", "a.txt"]) await writeFile(join(service.workspace, name), `in ${name}\n`);
  const rule = { permission: "read", pattern: "*.pem", action: PermissionAction.DENY };
  const sessionId = await agent.newSession({ agent: "free", rules: [rule] });
  const command = 'for name in a.*; do echo "$(cat "$name")"; done';
  const call = { sessionId, callId: "c1", agent: "free", tool: "bash", input: { command } };
  const { part } = await agent.tools.callTool(call);
  expect(part?.state.value).toMatchObject({
    output: expect.stringMatching(/in a.txt\n/),
    metadata: { sandbox: { hidden: { count: 2, paths: ["a.key", "a.pem"] } } },
  });
  expect(JSON.stringify(part?.state.value)).not.toMatch(/in a.(key|pem)/);

  // What a command makes although it may not waits in the quarantine for an approver, who sees its text.
  const make = { command: "d=.vscode; mkdir -p pkg/$d; cp a.txt pkg/$d/tasks.json" };
  const made = join(service.workspace, "pkg/.vscode/tasks.json");
  const making = async (callId: string, reply: PermissionReply) => {
    const stream = read(agent.tools.executeTool({ sessionId, callId, agent: "free", tool: "bash", input: make }));
    const { id: permissionId, preview, decisions } = await stream.until("permissionAsked");
    expect(preview).toMatchObject({ paths: ["pkg/.vscode"], diff: expect.stringContaining("+in a.txt"), additions: 1 });
    expect(decisions).toMatchObject([
      { permission: "edit", reason: expect.stringContaining("a setting of an editor") },
    ]);
    expect(existsSync(made)).toBe(false);
    await connect(service, "approver").permissions.respondToPermission({ sessionId, permissionId, reply });
    return (await stream.end()).state;
  };
  const refused = await making("c2", PermissionReply.REJECT);
  expect([refused.case, existsSync(made)]).toEqual(["completed", false]);
  expect(JSON.stringify(refused.value)).toContain("No approver allowed it. It is in quarantine (");
  expect(JSON.stringify((await making("c3", PermissionReply.ONCE)).value)).toContain('"outcome":"restored"');
  expect(await readFile(made, "utf8")).toBe("in a.txt\n");
});

test("plans and requests say what a command will not see, and what it finds by itself asks nothing", async () => {
  const settings =
    '[permission.read]\n"*.key" = "deny"\n"secrets/*" = "ask"\n[agent.tester.permission]\nbash = "allow"\n';
  const service = await startService({ settings });
  const [agent, person] = [connect(service, "caller"), connect(service, "approver")];
  for (const name of ["src", "secrets"]) await mkdir(join(service.workspace, name));
  for (const name of ["a.key", "src/b.key", "secrets/c", "src/d"])
    await writeFile(join(service.workspace, name), "x\n");
  const plan = (command: string, more = {}) =>
    agent.tools.planTool({ agent: "tester", tool: "bash", input: { command }, ...more });
  const hidden = { count: 3, paths: ["secrets/", "src/b.key", "a.key"] };

  // The first look at the workspace may take longer than a preview waits for it.
  await expect
    .poll(() => plan("grep -r x ."), { timeout: 30_000 })
    .toMatchObject({ action: PermissionAction.ALLOW, preview: { hidden } });
  expect((await plan("cat *.key src/*")).action).toBe(PermissionAction.ALLOW);
  expect((await plan("cat a.key")).action).toBe(PermissionAction.DENY);
  // A file that the call asks to read is hidden no more once that is approved.
  const named = await plan("cat secrets/c");
  expect(named).toMatchObject({ action: PermissionAction.ASK, preview: { hidden: { count: 2 } } });
  const rules = [
    { permission: "bash", pattern: "*", action: PermissionAction.ALLOW },
    { permission: "read", pattern: "*.key", action: PermissionAction.DENY },
  ];
  expect((await plan("grep -r x .", { rules, onlyRules: true })).action, "control: no sandbox").toBe(
    PermissionAction.DENY,
  );
  const { action } = await agent.permissions.explainPermission({
    agent: "tester",
    permission: "bash",
    patterns: ["grep -r x ."],
  });
  expect(action).toBe(PermissionAction.ALLOW);

  const sessionId = await agent.newSession();
  const stream = read(
    agent.tools.executeTool({ sessionId, callId: "c1", tool: "bash", input: { command: "cat src/*" } }),
  );
  const asked = await stream.until("permissionAsked");
  expect(asked).toMatchObject({ permission: "bash", preview: { command: "cat src/*", hidden } });
  await person.permissions.respondToPermission({ sessionId, permissionId: asked.id, reply: PermissionReply.ONCE });
  const { value } = (await stream.end()).state;
  expect(value).toMatchObject({
    output: expect.stringMatching(
      /src\/b.key: Permission denied\nx\n[\s\S]*src\/b.key is hidden from this command: config rule/,
    ),
    metadata: { sandbox: { hidden } },
  });
});

test("a connection to an unknown host waits for a person; refusals end it, and the audit has hosts and bytes", async () => {
  const server = createServer((_, response) => response.end("reached"));
  server.listen(0, "127.0.0.2");
  await once(server, "listening");
  onTestFinished(() => void server.close());
  const url = `http://127.0.0.2:${(server.address() as AddressInfo).port}/`;
  const service = await startService({
    settings: `[permission.bash]\n"*" = "allow"\n[permission.webfetch]\n"${url}*" = "ask"\n`,
  });
  const [agent, person] = [connect(service, "caller"), connect(service, "approver")];
  const sessionId = await agent.newSession();
  const fetched = async (callId: string, reply: PermissionReply) => {
    const input = { command: `curl -sS ${url}; echo; echo done` };
    const stream = read(agent.tools.executeTool({ sessionId, callId, tool: "bash", input }));
    const asked = await stream.until("permissionAsked");
    expect(asked).toMatchObject({ permission: "webfetch", patterns: [url] });
    await person.permissions.respondToPermission({ sessionId, permissionId: asked.id, reply });
    return (await stream.end()).state.value;
  };
  const refused = expect.stringMatching(/^toolgate: .* was refused: .*\n\ndone\n/);
  expect(await fetched("c1", PermissionReply.REJECT)).toMatchObject({ output: refused, metadata: { exit: 0 } });
  expect(await fetched("c2", PermissionReply.ONCE)).toMatchObject({ output: "reached\ndone\n" });
  const { entries } = await person.permissions.listDecisions({ sessionId });
  const connected = entries.flatMap(({ record }) => (record?.kind === DecisionKind.CONNECTED ? [record] : []));
  const { host, port } = { host: "127.0.0.2", port: Number(new URL(url).port) };
  expect(connected).toMatchObject([{ callId: "c2", tool: "bash", traffic: [{ host, port, connections: 1 }] }]);
  expect(connected[0]?.traffic[0]?.receivedBytes).toBeGreaterThan(100n);
});

test("a command does not get a directory that the program which started the service left open", async () => {
  const folder = await mkdtemp(join(homedir(), ".toolgate-test-"));
  onTestFinished(() => rm(folder, { recursive: true }));
  await writeFile(join(folder, "toolgate.toml"), '[permission]\nbash = "allow"\n');
  const certificates = join(folder, "certificates.pem");
  await writeFile(certificates, "");
  // Node protects low descriptors by itself, up to the first gap.
  const input = JSON.stringify({ command: "true <&200 && echo open || echo closed; true <&201 && echo certificates" });
  const line = `exec 200</ 201<"$NODE_EXTRA_CA_CERTS"; exec "$0" "$@"`;
  await mkdir(join(folder, "workspace"));
  const run = [
    "run",
    "bash",
    input,
    "--workspace",
    join(folder, "workspace"),
    "--config",
    join(folder, "toolgate.toml"),
  ];
  const { stdout } = await promisify(execFile)("bash", ["-c", line, process.execPath, programEntry(), ...run], {
    env: { PATH: process.env.PATH, HOME: folder, NODE_EXTRA_CA_CERTS: certificates },
  });
  // A thread of Node may read its extra certificates just then: the number of a descriptor that is closed under it is soon another file.
  expect(stdout).toContain("closed\ncertificates");
});

test("when the service is killed, what runs in the sandbox is killed, also what has left its session", async () => {
  const service = await startService();
  const agent = connect(service, "caller");
  const name = `sandboxed-${process.pid}-${Date.now()}`;
  const command = `setsid bash -c "exec -a ${name} sleep 600" & exec -a ${name} sleep 600`;
  const stream = read(agent.tools.executeTool({ callId: "c1", agent: "free", tool: "bash", input: { command } }));
  await stream.find(({ event }) => event.case === "part" && event.value.state.case === "running");
  const pids = await vi.waitUntil(
    async () => {
      const found = await processesNamed(name);
      return found.length === 2 && found;
    },
    { timeout: 60_000 },
  );
  await service.kill();
  for (const pid of pids) await untilDead(pid);
});

test("where it cannot start, GetServerInfo says why, and each command asks; where the configuration wants it, the service does not start", async () => {
  const env = { PATH: "/nowhere" };
  const service = await startService({ env });
  expect(await connect(service, "caller").tools.getServerInfo({})).toMatchObject({
    sandbox: SandboxState.UNAVAILABLE,
    sandboxProblem: expect.stringContaining("apt-get install bubblewrap"),
    sandboxDetails: { layers: [] },
  });
  const call = { callId: "c1", agent: "free", tool: "bash", input: { command: "true" } };
  const { decisions } = await read(connect(service, "caller").tools.executeTool(call)).until("permissionAsked");
  expect(decisions).toMatchObject([
    { reason: expect.stringContaining("runs without a sandbox, since bubblewrap is not installed") },
  ]);
  const wanting = startService({ env, settings: '[sandbox]\nprofile = "read-only"\n' });
  await expect(wanting).rejects.toThrow("the sandbox that is configured cannot start: bubblewrap is not installed");
});
