import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdir, readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { Code, createClient } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";
import { expect, onTestFinished, test, vi } from "vitest";
import { Health, HealthCheckResponse_ServingStatus as Status } from "../../gen/grpc/health/v1/health_pb.ts";
import { PermissionReply, ToolEffects, ToolErrorReason } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { startToolgate } from "../cli/toolgate.ts";
import { freezeRedis, startRedis } from "../store/redis-server.ts";
import { untilDead } from "../tools/processes.ts";
import { connect, refusal } from "./clients.ts";
import { startFront } from "./front.ts";
import { ledger } from "./ledger.ts";
import { nameOf, read } from "./reading.ts";
import { useReplicas } from "./replicas.ts";
import { type Service, startService, unconfined } from "./service.ts";

const replicas = useReplicas();

test("a call made at one replica is answered at a second and watched at a third", async () => {
  const { all, workspace } = replicas();
  const [a, b, c] = all;
  const agent = connect(a, "caller");
  const sessionId = await agent.newSession();
  const runs = ledger({ workspace });
  const watcher = read(connect(c, "watcher").tools.watchSession({ sessionId }));
  const call = { sessionId, callId: "c1", tool: "bash", input: { command: `${runs.append("ran")}; echo done` } };
  const stream = read(agent.tools.executeTool(call));
  const { id: permissionId } = await stream.until("permissionAsked");
  const answer = { sessionId, permissionId, reply: PermissionReply.ONCE };
  await connect(b, "approver").permissions.respondToPermission(answer);
  const late = connect(c, "deputy").permissions.respondToPermission(answer);
  expect(await refusal(late)).toMatchObject({ code: Code.FailedPrecondition, reason: "ALREADY_ANSWERED" });
  expect((await stream.end()).state.value).toMatchObject({ output: "done\n" });
  await watcher.find((event) => nameOf(event) === "completed");
  expect(watcher.seen).toEqual(stream.seen);
  expect(await runs.lines()).toHaveLength(1);
});

test("what a command printed at one replica is read whole at another", async () => {
  const [a, b] = replicas().all;
  const agent = connect(a, "caller");
  const sessionId = await agent.newSession();
  const call = { sessionId, callId: "c1", agent: "free", tool: "bash", input: { command: "seq 1 50000" } };
  const { part } = await agent.tools.callTool(call);
  const output = part?.state.case === "completed" ? String(part.state.value.metadata?.outputPath) : "";
  const pieces: Uint8Array[] = [];
  for (let offset = 0n, end = false; !end; offset += BigInt(pieces.at(-1)?.length ?? 0)) {
    const range = { case: "bytes", value: { offset } } as const;
    const piece = await connect(b, "watcher").tools.readToolOutput({ sessionId, output, range });
    pieces.push(piece.data);
    end = piece.end;
  }
  expect(Buffer.concat(pieces).toString()).toBe(Array.from({ length: 50_000 }, (_, i) => `${i + 1}\n`).join(""));
});

test("kill -9 of the replica while a person thinks: another one runs the call, once, after the answer", async () => {
  const { all, workspace } = replicas();
  const [a, b, c] = all;
  const agent = connect(a, "caller");
  const sessionId = await agent.newSession();
  const runs = ledger({ workspace });
  const call = { sessionId, callId: "c1", tool: "bash", input: { command: `${runs.append("ran")}; echo done` } };
  const stream = read(agent.tools.executeTool(call));
  const { id: permissionId } = await stream.until("permissionAsked");
  const cut = expect(stream.end()).rejects.toThrow();
  await a.kill();
  await cut;
  const person = connect(b, "approver");
  await person.permissions.respondToPermission({ sessionId, permissionId, reply: PermissionReply.ONCE });
  const rest = read(connect(c, "caller").tools.executeTool({ ...call, afterSeq: stream.lastSeq }));
  expect((await rest.end()).state.value).toMatchObject({ output: "done\n" });
  expect([...stream.seen, ...rest.seen].map(nameOf)).toEqual([
    "pending",
    "permissionAsked",
    "permissionSettled",
    "running",
    "output",
    "completed",
  ]);
  expect(await runs.lines()).toHaveLength(1);
});

test("kill -9 of the replica that asks a question: the answer at another one reaches the body", async () => {
  const [a, b, c] = replicas().all;
  const agent = connect(a, "caller");
  const sessionId = await agent.newSession();
  const call = { sessionId, callId: "c1", tool: "question", input: { question: "Which?", options: ["this", "that"] } };
  const stream = read(agent.tools.executeTool(call));
  const { id: permissionId } = await stream.until("permissionAsked");
  const cut = expect(stream.end()).rejects.toThrow();
  await a.kill();
  await cut;
  const answer = { sessionId, permissionId, reply: PermissionReply.ONCE, answers: [{ values: ["that"] }] };
  await connect(b, "approver").permissions.respondToPermission(answer);
  const rest = read(connect(c, "caller").tools.executeTool({ ...call, afterSeq: stream.lastSeq }));
  expect((await rest.end()).state.value).toMatchObject({ metadata: { answers: [["that"]] } });
});

test("a call is taken over by a replica that serves its workspace, and by no other", async () => {
  const { all, redis, workspace } = replicas();
  const [b] = all;
  const other = join(workspace, "other");
  await mkdir(other, { recursive: true });
  const shared = `store = "${redis.url}"\n${unconfined}\n[workspace]\nother = "${other}"\n`;
  const own = await startService({ settings: `lease_ms = 1000\n${shared}` });
  const agent = connect(own, "caller");
  const sessionId = await agent.newSession({ workspace: "other" });
  const call = { sessionId, callId: "c1", tool: "bash", input: { command: "pwd" } };
  const stream = read(agent.tools.executeTool(call));
  const { id: permissionId } = await stream.until("permissionAsked");
  const cut = expect(stream.end()).rejects.toThrow();
  await own.kill();
  await cut;
  const answer = { sessionId, permissionId, reply: PermissionReply.ONCE };
  await connect(b, "approver").permissions.respondToPermission(answer);
  const log = join(b.data, "log", "toolgate.log");
  const isLeft = async () => (await readFile(log, "utf8").catch(() => "")).includes("its workspace is not served here");
  await vi.waitUntil(isLeft, { timeout: 60_000 });
  // The short lease was for the others: a busy machine may take as long to start the command.
  await own.configure(shared);
  await own.start();
  const rest = read(connect(own, "caller").tools.executeTool({ ...call, afterSeq: stream.lastSeq }));
  expect((await rest.end()).state.value).toMatchObject({ output: `${other}\n` });
});

test("kill -9 of the replica while the tool runs: another one records EXECUTOR_LOST, and its processes are dead", async () => {
  const { all, workspace } = replicas();
  const [a, b] = all;
  const agent = connect(a, "caller");
  const sessionId = await agent.newSession();
  const runs = ledger({ workspace });
  const input = { command: `${runs.append("ran")}; setsid sleep 600 & echo $!; wait` };
  const call = { sessionId, callId: "c1", agent: "free", tool: "bash", input };
  const stream = read(agent.tools.executeTool(call));
  const pid = Number(Buffer.from((await stream.until("output")).data).toString());
  const cut = expect(stream.end()).rejects.toThrow();
  await a.kill();
  await cut;
  const rest = read(connect(b, "caller").tools.executeTool({ ...call, afterSeq: stream.lastSeq }));
  expect((await rest.end()).state.value).toMatchObject({
    reason: ToolErrorReason.EXECUTOR_LOST,
    effects: ToolEffects.UNKNOWN,
  });
  await untilDead(pid);
  expect(await runs.lines()).toHaveLength(1);
});

test("a call that runs at one replica can be cancelled at another", async () => {
  const { all } = replicas();
  const [a, b] = all;
  const agent = connect(a, "caller");
  const sessionId = await agent.newSession();
  const call = { sessionId, callId: "c1", agent: "free", tool: "bash", input: { command: "echo $$; exec sleep 600" } };
  const stream = read(agent.tools.executeTool(call));
  const pid = Number(Buffer.from((await stream.until("output")).data).toString());
  const { part } = await connect(b, "caller").tools.cancelTool({ ...call, message: "Enough." });
  expect(part?.state.value).toMatchObject({ reason: ToolErrorReason.CANCELLED, error: "Enough." });
  expect(await stream.end()).toEqual(part);
  await untilDead(pid);
});

test("SIGTERM hands a waiting call over, and the command line does not notice", async () => {
  const { all, workspace } = replicas();
  const [a, b, c] = all;
  const sessionId = await connect(a, "caller").newSession();
  const runs = ledger({ workspace });
  const front = await startFront([a.url, b.url]);
  const input = JSON.stringify({ command: `${runs.append("ran")}; echo done` });
  const args = ["call", "bash", input, "--session", sessionId, "--call-id", "c1"];
  const command = startToolgate(args, { TOOLGATE_URL: front.url, TOOLGATE_TOKEN: "caller-token-for-tests" });
  const log = read(connect(c, "watcher").tools.watchSession({ sessionId }));
  const { id: permissionId } = await log.until("permissionAsked");
  expect(await a.stop()).toBe(0);
  const person = connect(c, "approver");
  await person.permissions.respondToPermission({ sessionId, permissionId, reply: PermissionReply.ONCE });
  expect(await command.finished).toMatchObject({ code: 0, stdout: expect.stringContaining("done\n") });
  expect(await runs.lines()).toHaveLength(1);
});

test.each(["grpc-js", "connect-web"])(
  "SIGTERM while a command runs: the example in %s does not notice",
  async (name) => {
    const { all, workspace } = replicas();
    const [a, b] = all;
    const front = await startFront([a.url, b.url]);
    const go = `go-${name}`;
    const command = `echo begun; until [ -e ${go} ]; do sleep 0.05; done; echo done`;
    const example = spawn(process.execPath, [`examples/typescript/${name}.ts`, command, `call_${name}`], {
      env: { ...process.env, TOOLGATE_URL: front.url, ...tokens },
      stdio: ["ignore", "pipe", "pipe"],
    });
    onTestFinished(() => void example.kill("SIGKILL"));
    const ended = once(example, "close");
    const printed: string[] = [];
    const begun = Promise.withResolvers<void>();
    createInterface({ input: example.stdout }).on("line", (line) => {
      if (line.startsWith("#")) printed.push(line);
      if (line.includes("output: begun")) begun.resolve();
    });
    await begun.promise;
    const stopped = a.stop();
    await expect.poll(async () => await (await fetch(`${a.url}/readyz`)).text()).toBe("draining\n");
    await writeFile(join(workspace, go), "");
    expect(await ended).toEqual([0, null]);
    expect(await stopped).toBe(0);
    expect(printed.map((line) => line.replace(/output: .*/, "output"))).toEqual([
      "#1 pending",
      "#2 asks: bash",
      "#3 answered by approver",
      "#4 running",
      "#5 output",
      "#6 output",
      "#7 completed",
    ]);
  },
);

test("a replica does not start on a Redis that may evict, and prints only the next step", async () => {
  const redis = await startRedis("--maxmemory-policy", "allkeys-lru");
  onTestFinished(redis.stop);
  const started = await startService({ settings: `store = "${redis.url}"\n` }).catch(String);
  expect(started).toContain("run CONFIG SET maxmemory-policy noeviction and set the same in its configuration");
  expect(started).not.toContain("next:");
});

test("the health of a replica follows its connection to Redis", async () => {
  const { all, redis } = replicas();
  const health = createClient(Health, createGrpcTransport({ baseUrl: all[0].url }));
  const becomes = (status: Status) =>
    vi.waitUntil(async () => (await health.check({})).status === status, { timeout: 60_000 });
  await becomes(Status.SERVING);
  const thaw = await freezeRedis(redis);
  await becomes(Status.NOT_SERVING);
  expect(await readyz(all[0])).toBe(503);
  thaw();
  await becomes(Status.SERVING);
  expect(await readyz(all[0])).toBe(200);
});

test("a Redis that comes back empty makes a retry data_loss, never a second run", async () => {
  const { all, redis, workspace } = replicas();
  const [a, b] = all;
  const agent = connect(a, "caller");
  const sessionId = await agent.newSession();
  const runs = ledger({ workspace });
  const call = { sessionId, callId: "c1", agent: "free", tool: "bash", input: { command: runs.append("ran") } };
  const { storeId: expectedStoreId } = await agent.tools.callTool(call);
  expect(await readyz(b)).toBe(200);
  await redis.restart();
  for (const replica of [a, b]) {
    await vi.waitUntil(async () => (await readyz(replica)) === 200, { timeout: 60_000 });
    const again = connect(replica, "caller").tools.callTool({ ...call, expectedStoreId });
    expect(await refusal(again)).toMatchObject({ code: Code.DataLoss });
  }
  expect(await runs.lines()).toHaveLength(1);
  await redis.stop();
  await vi.waitUntil(async () => (await readyz(a)) === 503, { timeout: 60_000 });
});

const tokens = { TOOLGATE_CALLER_TOKEN: "caller-token-for-tests", TOOLGATE_APPROVER_TOKEN: "approver-token-for-tests" };

async function readyz({ url }: Service): Promise<number> {
  return (await fetch(`${url}/readyz`)).status;
}
