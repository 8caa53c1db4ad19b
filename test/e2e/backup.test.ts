import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdir, mkdtemp, readdir, readFile, rm, symlink, writeFile } from "node:fs/promises";
import { type AddressInfo, createServer } from "node:net";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { Code } from "@connectrpc/connect";
import { expect, onTestFinished, test } from "vitest";
import { PermissionReply, ToolEffects, ToolErrorReason } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { toolgate } from "../cli/toolgate.ts";
import { main, programEntry } from "../main.ts";
import { connect, refusal } from "./clients.ts";
import { ledger } from "./ledger.ts";
import { read } from "./reading.ts";
import { startService } from "./service.ts";

/** A tool that may run again after a crash, and does not end. */
const held = `import { appendFileSync } from "node:fs";
import { defineTool, z } from "toolgate/plugin";
export default defineTool({ description: "Hold.", idempotent: true, input: z.object({ ledger: z.string() }),
  async execute({ ledger }, ctx) { appendFileSync(ctx.workspace.directory + "/" + ledger, "held\\n"); await new Promise(() => {}); } });
`;

test("the drill: back up under load, check an upgrade, kill, restore, compare, confirm", async () => {
  const service = await startService();
  await mkdir(join(dirname(service.config), "tool"));
  await writeFile(join(dirname(service.config), "tool", "held.ts"), held);
  const [agent, person] = [connect(service, "caller"), connect(service, "approver")];
  const runs = ledger(service);
  const sessionId = await agent.newSession();
  const bash = (callId: string, command: string, as = "free") => ({
    ...{ sessionId, callId, agent: as, tool: "bash", input: { command } },
  });
  const pay = bash("pay", `${runs.append("paid")}; seq 20000`);
  await agent.tools.callTool(pay);
  const granted = bash("granted", `${runs.append("granted")}`, "build");
  const stream = read(agent.tools.executeTool(granted));
  const ask = await stream.until("permissionAsked");
  await person.permissions.respondToPermission({ sessionId, permissionId: ask.id, reply: PermissionReply.ALWAYS });
  await stream.end();
  const waits = read(agent.tools.executeTool(bash("waits", `${runs.append("waited")}; date`, "build")));
  const open = await waits.until("permissionAsked");
  const running = read(agent.tools.executeTool(bash("runs", "sleep 60")));
  await running.until("part");
  const cut = expect(running.end()).rejects.toThrow();
  const holds = { sessionId, callId: "holds", agent: "free", tool: "held", input: { ledger: runs.name }, waitMs: 0 };
  await agent.tools.callTool(holds);
  await expect.poll(runs.lines).toContain("held");

  // Load: calls that go on while the backup is made.
  let isStopped = false;
  let made = 0;
  const load = (async () => {
    for (; !isStopped; made++)
      await agent.tools.callTool({ sessionId, callId: `e${made}`, tool: "echo", input: { text: `${made}` } });
  })();
  await expect.poll(() => made).toBeGreaterThan(20);
  const before = made;
  const { storeId } = await agent.tools.getServerInfo({});
  const file = join(service.data, "..", "backup.tar");
  const env = { HOME: service.workspace, TOOLGATE_URL: service.url };
  const refused = await toolgate(["backup", file, "--token", "approver-token-for-tests"], env);
  expect(refused).toMatchObject({ code: 6, stderr: expect.stringContaining("it needs the role admin") });
  const taken = join(service.data, "..", "taken");
  await writeFile(taken, "another's");
  await symlink(taken, `${file}.partial`);
  const inTheWay = await toolgate(["backup", file, "--token", "admin-token-for-tests"], env);
  expect(inTheWay).toMatchObject({ code: 2, stderr: expect.stringContaining(".partial exists already") });
  expect(await readFile(taken, "utf8")).toBe("another's");
  await rm(`${file}.partial`);
  expect(await toolgate(["backup", file, "--token", "admin-token-for-tests"], env)).toMatchObject({ code: 0 });
  const twice = await toolgate(["backup", file, "--token", "admin-token-for-tests"], env);
  expect(twice).toMatchObject({ code: 2, stderr: expect.stringContaining("exists already") });
  isStopped = true;
  await load;
  const copy = await readFile(file);
  const places = ["--config", service.config, "--data", service.data, "--backup", file];
  const checked = await main(["upgrade", "--check", ...places, "--token", "approver-token-for-tests"], {
    ...env,
    HOME: dirname(service.config),
  });
  expect(checked.stdout.replace(/ +/g, " ").split("\n")).toEqual([
    `ok config ${service.config} is read as it is`,
    expect.stringMatching(/^ok store 0\.1\.0 with format (\d+), this is 0\.1\.0 with format \1: both work on one/),
    "ok calls 1 request open, which stay so",
    expect.stringMatching(/^ok rules \d\d+ recorded decisions repeated$/),
    "",
  ]);
  expect(checked).toMatchObject({ code: 0, stderr: "" });
  expect(await readFile(file)).toEqual(copy);
  expect(await runs.lines()).toEqual(["paid", "granted", "held"]);
  await agent.tools.callTool(bash("later", runs.append("later")));
  const { session } = await agent.sessions.getSession({ sessionId });
  const partsBefore = (await agent.tools.listToolParts({ sessionId, pageSize: 500 })).parts;
  const answered = { sessionId, permissionId: open.id, reply: PermissionReply.REJECT };
  await person.permissions.respondToPermission(answered);
  await waits.end();
  await service.kill();
  await cut;

  await rm(service.data, { recursive: true });
  await mkdir(service.data);
  const restored = await main(["restore", file, "--data", service.data], env);
  expect(restored).toMatchObject({ code: 0, stdout: expect.stringContaining("3 open calls ended") });
  await service.start();
  const [agent2, person2] = [connect(service, "caller"), connect(service, "approver")];
  const partsAfter = new Map(
    (await agent2.tools.listToolParts({ sessionId, pageSize: 500 })).parts.map((part) => [part.callId, part]),
  );
  const ended = [...["pay", "granted"], ...Array.from({ length: before }, (_, index) => `e${index}`)];
  for (const id of ended) expect(partsAfter.get(id)).toEqual(partsBefore.find(({ callId }) => callId === id));
  const output = `toolgate-output:${/toolgate-output:([A-Za-z0-9_-]+)/.exec(JSON.stringify(partsAfter.get("pay")?.state.value))?.[1]}`;
  const { data } = await agent2.tools.readToolOutput({ sessionId, output });
  expect(Buffer.from(data).toString()).toContain("19999\n");
  for (const id of ["waits", "runs", "holds"]) {
    const state = { case: "error", value: { reason: ToolErrorReason.EXECUTOR_LOST, effects: ToolEffects.UNKNOWN } };
    expect(partsAfter.get(id)?.state).toMatchObject(state);
  }
  expect((await person2.permissions.listPermissions({ sessionId })).permissions).toEqual([]);

  // What happened after the backup is unknown, and clients of the old store learn it.
  const lost = { code: Code.DataLoss, reason: "STORE_CHANGED" };
  expect(partsAfter.has("later")).toBe(false);
  const retry = { ...bash("later", runs.append("later")), expectedStoreId: storeId };
  expect(await refusal(agent2.tools.callTool(retry))).toMatchObject(lost);
  const watched = read(agent2.tools.watchSession({ sessionId, afterSeq: session?.lastSeq ?? 0n }));
  expect(await refusal(watched.end())).toMatchObject(lost);
  expect(await runs.lines()).toEqual(["paid", "granted", "held", "later"]);

  // A grant of the backup may have been revoked after it.
  const again = read(agent2.tools.executeTool({ ...granted, callId: "again" }));
  await again.until("permissionAsked");
  const env2 = { ...env, TOOLGATE_URL: service.url };
  const listed = await toolgate(["grants", "--token", "approver-token-for-tests"], env2);
  expect(listed.stdout).toContain("suspended by a restore");
  const confirmed = await toolgate(["grants", "confirm", "--token", "approver-token-for-tests"], env2);
  expect(confirmed).toMatchObject({ code: 0, stdout: expect.stringContaining("until revoked") });
  await agent2.tools.callTool({ ...granted, callId: "confirmed" });
  expect((await runs.lines()).filter((line) => line === "granted")).toHaveLength(2);
  const audit = await person2.permissions.listDecisions({ sessionId, pageSize: 500 });
  expect(audit.entries.at(-2)?.record?.grants[0]?.tool).toBe("bash");
  const none = await refusal(person2.permissions.confirmGrant({ grantId: "grt_none" }));
  expect(none).toMatchObject({ code: Code.NotFound, reason: "NO_SUCH_GRANT" });
});

test("a backup that is killed leaves no file of its name", async () => {
  const folder = await mkdtemp(join(tmpdir(), "toolgate-backup-"));
  const silent = createServer().listen(0, "127.0.0.1");
  onTestFinished(async () => {
    silent.close();
    await rm(folder, { recursive: true });
  });
  await once(silent, "listening");
  const url = `http://127.0.0.1:${(silent.address() as AddressInfo).port}`;
  const args = ["backup", "copy.tar", "--server", url, "--token", "admin-token-for-tests"];
  const env = { PATH: process.env.PATH, HOME: folder };
  const child = spawn(process.execPath, [programEntry(), ...args], { cwd: folder, env, stdio: "ignore" });
  const exited = once(child, "exit");
  await expect.poll(() => readdir(folder)).toContain("copy.tar.partial");
  child.kill("SIGKILL");
  await exited;
  expect(await readdir(folder)).toEqual(["copy.tar.partial"]);
});
