import { spawn } from "node:child_process";
import { mkdir, readFile, rm, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { PermissionReply, ToolEffects, ToolErrorReason } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { toolgate } from "../../cli/toolgate.ts";
import { connect, refusal } from "../../e2e/clients.ts";
import { type Service, startService, unconfined } from "../../e2e/service.ts";
import { main } from "../../main.ts";
import { connectWorker, echoTool, newInstance, openWorker, type RawHello, type RawWorker } from "./raw-worker.ts";

const settings = `
[permission.ci_echo]
"*" = "allow"
[permission.ci_ask]
"*" = "ask"
[[token]]
id = "ci-worker"
roles = ["worker"]
tools = ["ci_*"]
permissions = ["rollout"]
value = "ci-worker-token-for-tests"
`;

const dotPng = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

async function workerFor(service: Service, hello: RawHello = {}) {
  const worker = await connectWorker(service, hello);
  onTestFinished(worker.cut);
  return worker;
}

/** Reads all bytes of a stored output. */
async function wholeOutput(service: Service, sessionId: string, output: string): Promise<Buffer> {
  const { tools } = connect(service, "caller");
  const pieces: Uint8Array[] = [];
  for (let offset = 0n; ; ) {
    const { data, end } = await tools.readToolOutput({
      ...{ sessionId, output },
      range: { case: "bytes", value: { offset, limit: 262_144 } },
    });
    pieces.push(data);
    offset += BigInt(data.length);
    if (end || data.length === 0) return Buffer.concat(pieces);
  }
}

test("a call goes on after kill -9 of the service: its body is not entered again, and its output is whole", async () => {
  const service = await startService({ settings });
  const instanceId = newInstance();
  const before = await workerFor(service, { instanceId });
  const { tools, newSession } = connect(service, "caller");
  const sessionId = await newSession();
  await tools.callTool({ sessionId, callId: "long", tool: "ci_echo", input: { text: "long" }, waitMs: 0 });
  const start = await before.next("start");
  before.report(start, { case: "output", value: { blob: 0, offset: 0n, data: Buffer.from("before ") } });
  await expect.poll(async () => (await before.next("receipt")).stored[0]).toBe(7n);
  const ask = { permission: "rollout", patterns: ["prod"] };
  before.report(start, { case: "request", value: { number: 1, request: { case: "ask", value: ask } } });
  const person = () => connect(service, "approver").permissions;
  const open = async () => (await person().listPermissions({ sessionId })).permissions;
  await expect.poll(open).toHaveLength(1);
  await service.kill();
  await service.start();
  const worker = await workerFor(service, { instanceId, connection: 2n, held: [start.assignment] });
  expect((await worker.next("receipt")).stored[0]).toBe(7n);
  worker.report(start, { case: "output", value: { blob: 0, offset: 0n, data: Buffer.from("before after") } });
  worker.report(start, { case: "request", value: { number: 1, request: { case: "ask", value: ask } } });
  const [request] = await open();
  await person().respondToPermission({ sessionId, permissionId: request?.id ?? "", reply: PermissionReply.ONCE });
  expect(await worker.next("answer")).toMatchObject({ number: 1, answer: { case: undefined } });
  worker.report(start, { case: "result", value: { outcome: { case: "completed", value: {} } } });
  const { part } = await connect(service, "caller").tools.callTool({
    ...{ sessionId, callId: "long", tool: "ci_echo", input: { text: "long" }, waitMs: 60_000 },
  });
  expect(part?.state).toMatchObject({ case: "completed", value: { output: "before after" } });
  expect(await worker.next("ended")).toMatchObject({ assignment: start.assignment, recorded: true });
  expect(worker.untaken("start")).toBe(0);
});

test("kill -9 of a worker's process: EXECUTOR_LOST after resume_ms, effects UNKNOWN, and no second start", async () => {
  const service = await startService({
    settings: `[permission]\n"kit_*" = "allow"\n${settings.replace("ci_*", "kit_*")}`,
  });
  const folder = join(service.data, "../kit");
  await mkdir(folder);
  const program = join(import.meta.dirname, "../../worker-kit/workers/typescript.ts");
  const own = {
    TOOLGATE_URL: service.url,
    TOOLGATE_TOKEN: "ci-worker-token-for-tests",
    TOOLGATE_KIT: folder,
    KIT_RESUME_MS: "10000",
  };
  const start = () => {
    const child = spawn(process.execPath, [program], { env: { ...process.env, ...own }, stdio: "ignore" });
    onTestFinished(() => void child.kill("SIGKILL"));
    return child;
  };
  const { tools } = connect(service, "caller");
  const call = (text: string) => tools.callTool({ tool: "kit_wait", input: { text }, waitMs: 60_000 });
  const ledger = () => readFile(join(folder, "ledger"), "utf8").catch(() => "");
  const worker = start();
  await expect.poll(async () => (await tools.listTools({})).tools.map(({ name }) => name)).toContain("kit_wait");
  const lost = call("lost");
  await expect.poll(ledger).toBe("entered lost\n");
  worker.kill("SIGKILL");
  start();
  expect((await lost).part?.state.value).toMatchObject({
    reason: ToolErrorReason.EXECUTOR_LOST,
    effects: ToolEffects.UNKNOWN,
  });
  // The other process would have got it first.
  await writeFile(join(folder, "release-next"), "");
  expect((await call("next")).part?.state.case).toBe("completed");
  expect(await ledger()).toBe("entered lost\nentered next\n");
});

test("attachments are sent again after kill -9 of the service, and after a cut line only what had not come is taken", async () => {
  const service = await startService({ settings });
  const instanceId = newInstance();
  const { tools, newSession } = connect(service, "caller");
  const sessionId = await newSession();
  const before = await workerFor(service, { instanceId });
  await tools.callTool({ sessionId, callId: "files", tool: "ci_echo", input: { text: "files" }, waitMs: 0 });
  const start = await before.next("start");
  // More than the window of the output: attachments have no receipts.
  const file = Buffer.alloc(700_000, "attached ");
  const pieces = [0, 250_000, 500_000].map((offset) => ({
    ...{ blob: 1, offset: BigInt(offset) },
    data: file.subarray(offset, offset + 250_000),
  }));
  const sendAll = (worker: RawWorker, last = pieces.length) => {
    worker.report(start, { case: "output", value: { blob: 0, offset: 0n, data: Buffer.from("text") } });
    for (const value of pieces.slice(0, last)) worker.report(start, { case: "output", value });
  };
  sendAll(before, 2);
  await expect.poll(async () => (await before.next("receipt")).stored[0]).toBe(4n);
  before.cut();
  const second = await workerFor(service, { instanceId, connection: 2n, held: [start.assignment] });
  expect(await second.next("receipt")).toMatchObject({ stored: { 0: 4n } });
  sendAll(second);
  // Everything that was sent has come once this is answered.
  second.report(start, { case: "request", value: { number: 1, request: { case: "getState", value: "none" } } });
  await second.next("answer");
  await service.kill();
  await service.start();
  const third = await workerFor(service, { instanceId, connection: 3n, held: [start.assignment] });
  expect(await third.next("receipt")).toMatchObject({ stored: { 0: 4n } });
  sendAll(third);
  const attachments = [{ blob: 1, mime: "text/plain", filename: "attached.txt" }];
  third.report(start, { case: "result", value: { outcome: { case: "completed", value: { attachments } } } });
  const { part } = await connect(service, "caller").tools.callTool({
    ...{ sessionId, callId: "files", tool: "ci_echo", input: { text: "files" }, waitMs: 60_000 },
  });
  expect(part?.state).toMatchObject({
    case: "completed",
    value: { output: "text", attachments: [{ mime: "text/plain", filename: "attached.txt" }] },
  });
  const stored = part?.state.case === "completed" ? part.state.value.attachments[0] : undefined;
  expect(await wholeOutput(service, sessionId, stored?.url ?? "")).toEqual(file);
  expect(third.untaken("start")).toBe(0);
});

test("a worker returns the file of a call that its body made before kill -9 of the service, and no other file", async () => {
  const calls = 'tools = ["ci_*"]\ncalls = ["read"]';
  const service = await startService({ settings: settings.replace('tools = ["ci_*"]', calls) });
  await writeFile(join(service.workspace, "dot.png"), Buffer.from(dotPng, "base64"));
  const instanceId = newInstance();
  const { tools, newSession } = connect(service, "caller");
  const sessionId = await newSession();
  const before = await workerFor(service, { instanceId, capacity: 2 });
  const enter = async (callId: string) => {
    await tools.callTool({ sessionId, callId, tool: "ci_echo", input: { text: callId }, waitMs: 0 });
    return await before.next("start");
  };
  const [passes, invents] = [await enter("passes"), await enter("invents")];
  const child = { tool: "read", input: { filePath: "dot.png" } };
  before.report(passes, {
    case: "request",
    value: { number: 1, request: { case: "calls", value: { calls: [child] } } },
  });
  const { answer } = await before.next("answer");
  const part = answer.case === "calls" ? answer.value.calls[0]?.attachments[0] : undefined;
  expect(part).toMatchObject({ mime: "image/png" });
  await service.kill();
  await service.start();
  const held = [passes.assignment, invents.assignment];
  const worker = await workerFor(service, { instanceId, connection: 2n, held });
  for (const start of [passes, invents]) {
    const value = { attachments: [{ part: part ?? {} }] };
    worker.report(start, { case: "result", value: { outcome: { case: "completed", value } } });
  }
  const ended = async (callId: string) => {
    const call = { sessionId, callId, tool: "ci_echo", input: { text: callId }, waitMs: 60_000 };
    return (await connect(service, "caller").tools.callTool(call)).part?.state;
  };
  expect(await ended("passes")).toMatchObject({ case: "completed", value: { attachments: [{ url: part?.url }] } });
  // The control: it is the file of another call's body.
  const error = expect.stringContaining("returned a file that no call of it returned");
  expect(await ended("invents")).toMatchObject({ case: "error", value: { error } });
});

test("after a restore from a backup a worker is refused with what it held, and no body is entered again", async () => {
  const service = await startService({ settings });
  const instanceId = newInstance();
  const before = await workerFor(service, { instanceId });
  const { tools, newSession } = connect(service, "caller");
  const sessionId = await newSession();
  const call = { sessionId, callId: "held", tool: "ci_echo", input: { text: "held" }, waitMs: 0 };
  await tools.callTool(call);
  const start = await before.next("start");
  const file = join(service.data, "..", "backup.tar");
  const env = { HOME: service.workspace, TOOLGATE_URL: service.url };
  expect(await toolgate(["backup", file, "--token", "admin-token-for-tests"], env)).toMatchObject({ code: 0 });
  await service.kill();
  await rm(service.data, { recursive: true });
  await mkdir(service.data);
  expect(await main(["restore", file, "--data", service.data], env)).toMatchObject({ code: 0 });
  await service.start();

  const held = { instanceId, connection: 2n, held: [start.assignment], expectedStoreId: before.welcome.storeId };
  const refused = openWorker(service, held).ended.then((error) => Promise.reject(error));
  expect(await refusal(refused)).toMatchObject({ reason: "STORE_CHANGED" });
  const worker = await workerFor(service, { instanceId, connection: 3n });
  expect(worker.welcome.storeId).not.toBe(before.welcome.storeId);
  // The body has ended meanwhile: its report is that of another store.
  worker.complete(start, "late");
  expect(await worker.next("ended")).toMatchObject({ assignment: start.assignment, recorded: false });
  const lost = { reason: ToolErrorReason.EXECUTOR_LOST, effects: ToolEffects.UNKNOWN };
  const { part } = await connect(service, "caller").tools.getToolPart({ sessionId, callId: "held" });
  expect(part?.state).toMatchObject({ case: "error", value: lost });
  const fresh = connect(service, "caller").tools.callTool({ ...call, callId: "new", waitMs: 60_000 });
  const next = await worker.next("start");
  expect(next.call).toMatchObject({ callId: "new" });
  worker.complete(next, "once");
  expect((await fresh).part?.state).toMatchObject({ case: "completed", value: { output: "once" } });
  expect(worker.untaken("start")).toBe(0);
});

test("while no worker is connected a call asks, and it runs once when one comes", async () => {
  const service = await startService({ settings });
  const first = await workerFor(service, { tools: [echoTool("ci_ask")], resumeMs: 0 });
  first.cut();
  await first.ended;
  // What workers declared is still known after a restart.
  await service.stop();
  await service.start();
  const { tools, newSession } = connect(service, "caller");
  const sessionId = await newSession();
  await tools.callTool({ sessionId, callId: "asked", tool: "ci_ask", input: { text: "prod" }, waitMs: 0 });
  const { permissions } = connect(service, "approver");
  const open = async () => (await permissions.listPermissions({ sessionId })).permissions;
  await expect.poll(open).toMatchObject([{ permission: "ci_ask", patterns: ["prod"] }]);
  const [request] = await open();
  await permissions.respondToPermission({ sessionId, permissionId: request?.id ?? "", reply: PermissionReply.ONCE });
  const worker = await workerFor(service, { tools: [echoTool("ci_ask")] });
  worker.complete(await worker.next("start"), "once");
  const call = { sessionId, callId: "asked", tool: "ci_ask", input: { text: "prod" }, waitMs: 60_000 };
  expect((await tools.callTool(call)).part?.state).toMatchObject({ case: "completed", value: { output: "once" } });
});

test("the definition of the highest generation serves; always does not cover a changed description", async () => {
  const service = await startService({ settings });
  const { tools, newSession } = connect(service, "caller");
  const { permissions } = connect(service, "approver");
  const describe = (description: string) => [echoTool("ci_ask", { description })];
  const old = await workerFor(service, { tools: describe("Old."), generation: 1n });
  const listed = async () => (await tools.listTools({})).tools.find(({ name }) => name === "ci_ask");
  const before = await listed();
  expect(before).toMatchObject({ description: "Old.", worker: "ci" });
  const sessionId = await newSession();
  const call = (callId: string, definitionId = "") =>
    tools.callTool({
      sessionId,
      callId,
      definitionId,
      tool: "ci_ask",
      input: { text: "prod", callId },
      waitMs: 60_000,
      queueMs: 500,
    });
  const open = async () => (await permissions.listPermissions({ sessionId })).permissions;
  const first = call("one");
  await expect.poll(open).toHaveLength(1);
  const [request] = await open();
  const reply = { sessionId, permissionId: request?.id ?? "", reply: PermissionReply.ALWAYS };
  await permissions.respondToPermission(reply);
  old.complete(await old.next("start"));
  await first;
  const covered = call("two");
  old.complete(await old.next("start"));
  expect((await covered).part?.state.case).toBe("completed");

  const next = await workerFor(service, { tools: describe("New."), generation: 2n });
  expect(await listed()).toMatchObject({ description: "New." });
  // A call of the old definition goes to a worker that has it, as long as there is one.
  const bound = call("three", before?.definitionId);
  old.complete(await old.next("start"));
  expect((await bound).part?.state.case).toBe("completed");
  old.cut();
  await old.ended;
  expect((await call("stale", before?.definitionId)).part?.state).toMatchObject({
    value: { reason: ToolErrorReason.STALE_TOOL },
  });
  const changed = call("four");
  await expect.poll(open).toHaveLength(1);
  const [again] = await open();
  await permissions.respondToPermission({ sessionId, permissionId: again?.id ?? "", reply: PermissionReply.ONCE });
  next.complete(await next.next("start"));
  expect((await changed).part?.state.case).toBe("completed");
  expect(old.untaken("start")).toBe(0);
});

test("a call that waits keeps the worker that it asked for while that is away for a moment, and a later definition serves", async () => {
  const service = await startService({ settings: `${settings}${unconfined}` });
  const file = join(dirname(service.config), "tool/deploy.ts");
  await mkdir(dirname(file));
  const saveTool = (args: string) =>
    writeFile(
      file,
      `import { tool } from "toolgate/plugin";
       export default tool({ description: "Deploys.", args: { ${args}: tool.schema.string() }, execute: async () => "" });`,
    );
  await saveTool("target");
  const { tools, newSession } = connect(service, "caller");
  const { permissions } = connect(service, "approver");
  const old = { tools: [echoTool("ci_ask", { description: "Old." })], generation: 1n, resumeMs: 0 };
  const first = await workerFor(service, old);
  const sessionId = await newSession();
  const call = { sessionId, callId: "waits", tool: "ci_ask", input: { text: "prod" } };
  const compared = { sessionId, callId: "compared", tool: "deploy", input: { target: "prod" } };
  for (const each of [call, compared]) await tools.callTool({ ...each, waitMs: 0 });
  const open = async () => (await permissions.listPermissions({ sessionId })).permissions;
  await expect.poll(open).toHaveLength(2);
  const asked = (await open()).find(({ tool }) => tool?.callId === "waits");

  await workerFor(service, { tools: [echoTool("ci_ask", { description: "New." })], generation: 2n });
  first.cut();
  await first.ended;
  // Its call ends when all that wait are compared with the tools that serve now.
  await saveTool("place");
  expect((await tools.callTool({ ...compared, waitMs: 60_000 })).part?.state.value).toMatchObject({
    reason: ToolErrorReason.STALE_TOOL,
  });
  expect(await open()).toEqual([asked]);
  const again = await workerFor(service, { ...old, instanceId: first.instanceId, connection: 2n });
  await permissions.respondToPermission({ sessionId, permissionId: asked?.id ?? "", reply: PermissionReply.ONCE });
  again.complete(await again.next("start"), "old");
  const { part } = await tools.callTool({ ...call, waitMs: 60_000 });
  expect(part?.state).toMatchObject({ case: "completed", value: { output: "old" } });
});
