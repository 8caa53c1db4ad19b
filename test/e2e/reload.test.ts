import { mkdir, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Code } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";
import { expect, onTestFinished, test, vi } from "vitest";
import { PermissionAction } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { PermissionReply } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { startProgramAtTerminal } from "../cli/toolgate.ts";
import { programEntry } from "../main.ts";
import { freezeRedis, startRedis } from "../store/redis-server.ts";
import { bearer, connect, kinds, type Opens, refusal } from "./clients.ts";
import { read } from "./reading.ts";
import { type Service, startService } from "./service.ts";

const echo = { tool: "bash", input: { command: "echo hello" } };
const allowEcho = '[permission.bash]\n"echo *" = "allow"\n';

test("SIGHUP puts changed rules and tokens in force, and not before", async () => {
  const service = await startService();
  const agent = connect(service, "caller");
  const sessionId = await agent.newSession();
  await edit(service, (text) => `${allowEcho}${text}`.replace("stranger-token-for-tests", "another-token-for-tests"));
  // Control: the file alone changes nothing.
  const asked = read(agent.tools.executeTool({ sessionId, callId: "before", ...echo }));
  await asked.until("permissionAsked");
  expect((await refusal(withToken(service, "another-token-for-tests").newSession())).code).toBe(Code.Unauthenticated);

  await hangUp(service, "configuration reloaded");
  const call = { sessionId, callId: "c1", ...echo };
  expect((await agent.tools.callTool(call)).part?.state.value).toMatchObject({ output: "hello\n" });
  await agent.tools.cancelTool({ sessionId, callId: "before" });
  await asked.end();
  await withToken(service, "another-token-for-tests").newSession();
  expect((await refusal(withToken(service, "stranger-token-for-tests").newSession())).code).toBe(Code.Unauthenticated);
});

test("replicas whose rules another one replaced take no calls and no answers until they are reloaded too", async () => {
  const redis = await startRedis();
  onTestFinished(redis.stop);
  const settings = `store = "${redis.url}"\n`;
  const [one, other] = [await startService({ settings }), await startService({ settings })];
  const agent = connect(one, "caller");
  const sessionId = await agent.newSession();
  const waiting = await agent.tools.callTool({ sessionId, callId: "waits", ...echo, waitMs: 5_000 });
  const permissionId = waiting.permissions[0]?.id ?? "";
  const change = (text: string) => text.replace("[agent.free", `${allowEcho}[agent.free`);
  await edit(other, change);
  await hangUp(other, "configuration reloaded");

  const readiness = async () => (await fetch(`${one.url}/readyz`)).status;
  await expect.poll(readiness, { timeout: 10_000 }).toBe(503);
  const unavailable = { code: Code.Unavailable, reason: "DRAINING" };
  expect(await refusal(agent.tools.callTool({ sessionId, callId: "new", ...echo }))).toMatchObject(unavailable);
  const answer = { sessionId, permissionId, reply: PermissionReply.ONCE };
  expect(await refusal(connect(one, "approver").permissions.respondToPermission(answer))).toMatchObject(unavailable);
  const call = { sessionId, callId: "new", ...echo };
  expect((await connect(other, "caller").tools.callTool(call)).part?.state.case).toBe("completed");

  await edit(one, change);
  await hangUp(one, "configuration reloaded");
  await expect.poll(readiness, { timeout: 10_000 }).toBe(200);
  // Another command, since one that is repeated asks.
  const later = await agent.tools.callTool({ sessionId, callId: "later", ...echo, input: { command: "echo later" } });
  expect(later.part?.state.case).toBe("completed");
});

test("rules that are reloaded while Redis does not answer replace those of other replicas once it does", async () => {
  const redis = await startRedis();
  onTestFinished(redis.stop);
  const settings = `store = "${redis.url}"\n`;
  const [one, other] = [await startService({ settings }), await startService({ settings })];
  const readiness = async () => (await fetch(`${one.url}/readyz`)).status;
  const thaw = await freezeRedis(redis);
  onTestFinished(thaw);
  await expect.poll(readiness, { timeout: 30_000 }).toBe(503);
  await edit(one, (text) => text.replace("[agent.free", `${allowEcho}[agent.free`));
  await hangUp(one, "configuration reloaded");
  thaw();
  await expect.poll(() => logOf(other), { timeout: 30_000 }).toContain("policy mismatch");
  await expect.poll(readiness, { timeout: 30_000 }).toBe(200);
  const agent = connect(one, "caller");
  const call = { sessionId: await agent.newSession(), callId: "c1", ...echo };
  expect((await agent.tools.callTool(call)).part?.state.case).toBe("completed");
  expect(await logOf(one)).not.toContain("policy mismatch");
});

test.each([
  ["a setting that does not exist", (text: string) => `permision = 1\n${text}`, "permision"],
  [
    "a permission test that fails",
    (text: string) => `${text}\n[[permission_test]]\npermission = "bash"\npattern = "echo x"\nexpect = "deny"\n`,
    "expected deny",
  ],
  ["a plugin that is missing", (text: string) => `plugin = ["./missing.ts"]\n${text}`, "missing.ts does not exist"],
])("SIGHUP with %s changes nothing, ends nothing and is logged", async (_what, spoil, reason) => {
  const service = await startService({ settings: allowEcho });
  const agent = connect(service, "caller");
  const sessionId = await agent.newSession();
  await edit(service, (text) => spoil(text.replace("stranger-token-for-tests", "another-token-for-tests")));
  await hangUp(service, reason);
  expect(await logOf(service)).toContain("configuration not reloaded");
  const call = { sessionId, callId: "c1", ...echo };
  expect((await agent.tools.callTool(call)).part?.state.case).toBe("completed");
  await connect(service, "stranger").newSession();
  expect(await service.stop()).toBe(0);
});

test("a terminal that closes does not stop the service that was started in it", async () => {
  const folder = await mkdtemp(join(tmpdir(), "toolgate-terminal-"));
  const [workspace, data] = [join(folder, "workspace"), join(folder, "data")];
  await mkdir(workspace);
  const flags = ["serve", "--listen", "127.0.0.1:0", "--workspace", workspace, "--data", data];
  const { child } = startProgramAtTerminal([process.execPath, programEntry(), ...flags], { HOME: folder });
  const log = async () => await readFile(join(folder, "data/log/toolgate.log"), "utf8").catch(() => "");
  await expect.poll(log).toContain("service started");
  const [, pid, address = ""] = /"pid":(\d+),"address":"([^"]+)"/.exec(await log()) ?? [];
  onTestFinished(async () => {
    process.kill(Number(pid), "SIGKILL");
    await rm(folder, { recursive: true, force: true, maxRetries: 10, retryDelay: 50 });
  });
  child.kill("SIGKILL");
  await expect.poll(log).toContain("configuration reloaded");
  expect((await fetch(new URL("/healthz", address))).status).toBe(200);
});

test("SIGHUP ends what a removed token has open, and nothing of another token", async () => {
  const service = await startService();
  const agent = connect(service, "stranger");
  const sessionId = await agent.newSession();
  const kept = [undefined, web].map((kind) =>
    read(connect(service, "approver", kind).tools.watchSession({ sessionId })),
  );
  const open = async (kind?: Opens) => {
    const { tools, permissions } = connect(service, "stranger", kind);
    const watchMany = tools.watchMany({ watches: [{ watch: { case: "session", value: { sessionId } } }] });
    const execute = tools.executeTool({ sessionId, callId: "asks", ...echo });
    const streams = [tools.watchSession({ sessionId }), permissions.watchPermissions({}), watchMany, execute];
    const ends = streams.map((stream) => {
      const messages = stream[Symbol.asyncIterator]() as AsyncIterator<unknown>;
      return { begun: messages.next(), end: refusal(drained(messages)) };
    });
    await Promise.all(ends.map(({ begun }) => begun));
    return ends.map(({ end }) => end);
  };
  const ends = [...(await open()), ...(await open(web))];
  ends.push(refusal(agent.tools.callTool({ sessionId, callId: "waits", ...echo, waitMs: 60_000 })));
  await kept[0]?.until("permissionAsked");
  await edit(service, (text) => text.replace("stranger-token-for-tests", "another-token-for-tests"));
  await hangUp(service, "configuration reloaded");
  for (const end of await Promise.all(ends))
    expect(end).toMatchObject({ code: Code.Unauthenticated, reason: "UNAUTHENTICATED" });
  await connect(service, "admin").tools.cancelTool({ sessionId, callId: "asks" });
  for (const stream of kept) expect((await stream.until("permissionSettled")).sessionId).toBe(sessionId);
});

test("SIGHUP names settings that need a restart", async () => {
  const service = await startService();
  await edit(service, (text) => `ask_ms = 5000\n${text}`);
  await hangUp(service, "settings changed that need a restart: askMs");
});

test("shadow rules decide nothing: what they would change is in the audit and counted, and no tool reaches their file", async () => {
  const folder = await mkdtemp(join(tmpdir(), "toolgate-shadow-"));
  onTestFinished(() => rm(folder, { recursive: true }));
  const file = join(folder, "next.toml");
  const next = '[preset]\nname = "contained"\n[permission.bash]\n"echo *" = "deny"\n';
  await writeFile(file, `listen = "127.0.0.1:1"\n${next}`);
  const service = await startService({ settings: `${allowEcho}[shadow]\nfile = ${JSON.stringify(file)}\n` });
  const [agent, person] = [connect(service, "caller"), connect(service, "approver")];
  const sessionId = await agent.newSession();
  const run = async (callId: string, command: string) => {
    const { part } = await agent.tools.callTool({
      sessionId,
      callId,
      tool: "bash",
      input: { command },
      waitMs: 60_000,
    });
    return part?.state.value;
  };
  const differences = async () => {
    const { entries } = await person.permissions.listDecisions({ sessionId });
    return entries.flatMap(({ record }) => {
      const { action, decision } = record?.shadow ?? {};
      return action === undefined ? [] : [[record?.callId, record?.facts?.action, action, decision?.pattern]];
    });
  };
  expect(await run("echoed", "echo hello")).toMatchObject({ output: "hello\n" });
  await agent.tools.callTool({ sessionId, callId: "same", tool: "glob", input: { pattern: "*" } });
  const asked = read(
    agent.tools.executeTool({ sessionId, callId: "asked", tool: "bash", input: { command: "ls -l" } }),
  );
  const { id: permissionId } = await asked.until("permissionAsked");
  await person.permissions.respondToPermission({ sessionId, permissionId, reply: PermissionReply.ONCE });
  await asked.end();
  const { ALLOW, ASK, DENY } = PermissionAction;
  const found = [
    ["echoed", ALLOW, DENY, "echo hello"],
    ["asked", ASK, ALLOW, "ls -l"],
  ];
  expect(await differences()).toEqual(found);
  const headers = { authorization: "Bearer watcher-token-for-tests" };
  const metrics = await (await fetch(`${service.url}/metrics`, { headers })).text();
  expect(metrics).toContain('toolgate_shadow_changes_total{from="allow",to="deny"} 1\n');
  expect(metrics).toContain('toolgate_shadow_changes_total{from="ask",to="allow"} 1\n');
  expect(await run("reads", `echo "$(cat ${file})"`)).toMatchObject({
    error: expect.stringContaining("names Toolgate's configuration, which no tool may touch"),
  });

  await writeFile(file, '[permission.bash]\n"echo *" = "alow"\n');
  await hangUp(service, `${file} cannot be used; correct:\\n  line 2: `);
  expect(await run("still", "echo still")).toMatchObject({ output: "still\n" });
  await edit(service, (text) => text.replace("next.toml", "other.toml"));
  await writeFile(join(folder, "other.toml"), next);
  await hangUp(service, "other.toml now, which commands can still read; start again with it");
  await edit(service, (text) => text.replace("other.toml", "next.toml"));
  await writeFile(file, allowEcho);
  await hangUp(service, "configuration reloaded");
  expect(await run("agreed", "echo agreed")).toMatchObject({ output: "agreed\n" });
  expect((await differences()).map(([callId]) => callId)).toEqual(["echoed", "asked", "still"]);
});

test("SIGHUP refuses a token in a file that commands can still read", async () => {
  const folder = await mkdtemp(join(tmpdir(), "toolgate-token-"));
  onTestFinished(() => rm(folder, { recursive: true }));
  const file = join(folder, "new.token");
  await writeFile(file, "another-token-for-tests");
  const service = await startService();
  const added = `[[token]]\nid = "added"\nroles = ["caller"]\nfile = ${JSON.stringify(file)}\n`;
  await edit(service, (text) => `${text}${added}`);
  await hangUp(service, `the configuration names ${file} now, which commands can still read; start again with it`);
  expect((await refusal(withToken(service, "another-token-for-tests").newSession())).code).toBe(Code.Unauthenticated);
  await service.stop();
  await service.start();
  await withToken(service, "another-token-for-tests").newSession();
});

/** A client that Connect's router serves; the others are served directly. */
const web = kinds["gRPC-Web over HTTP/2"];

async function drained(messages: AsyncIterator<unknown>): Promise<void> {
  while (!(await messages.next()).done);
}

const edit = async ({ config }: Service, change: (text: string) => string) =>
  writeFile(config, change(await readFile(config, "utf8")));

const logOf = ({ data }: Service) => readFile(join(data, "log", "toolgate.log"), "utf8").catch(() => "");

/** Sends SIGHUP and waits for a line of the log. */
async function hangUp(service: Service, line: string): Promise<void> {
  if (service.pid === undefined) throw new Error("the service does not run");
  process.kill(service.pid, "SIGHUP");
  await vi.waitUntil(async () => (await logOf(service)).includes(line), { timeout: 30_000 });
}

/** Connects with a token that is none of the principals'. */
const withToken = (service: Service, token: string) =>
  connect(service, "caller", (baseUrl) => createGrpcTransport({ baseUrl, interceptors: [bearer(token)] }));
