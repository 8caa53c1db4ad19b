import { once } from "node:events";
import { cp, mkdir, mkdtemp, readFile, rm, symlink, writeFile } from "node:fs/promises";
import { type ClientHttp2Session, connect as http2Connect } from "node:http2";
import { dirname, join } from "node:path";
import { create, toBinary } from "@bufbuild/protobuf";
import { Code } from "@connectrpc/connect";
import { expect, onTestFinished, test, vi } from "vitest";
import { PermissionReply, ToolErrorReason } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { WatchSessionRequestSchema } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { programEntry } from "../main.ts";
import { untilDead } from "../tools/processes.ts";
import { connect, refusal } from "./clients.ts";
import { ledger } from "./ledger.ts";
import { read } from "./reading.ts";
import { type Service, startService, unconfined } from "./service.ts";

/** Makes a copy of the package whose launcher takes this Node for too old, so that it starts another process. */
async function launcherEntry(): Promise<string> {
  const source = dirname(dirname(programEntry()));
  const copy = await mkdtemp(join(dirname(source), "toolgate-launcher-"));
  onTestFinished(() => rm(copy, { recursive: true }));
  await mkdir(join(copy, "bin"));
  // The package has no source; services of `test:mutants` start from it.
  for (const part of ["dist", "src", "node_modules"]) await symlink(join(source, part), join(copy, part));
  await cp(join(source, "package.json"), join(copy, "package.json"));
  const launcher = await readFile(join(source, "bin/toolgate.js"), "utf8");
  await writeFile(join(copy, "bin/toolgate.js"), launcher.replace("[24, 12]", "[99, 0]"));
  return join(copy, "bin/toolgate.js");
}

test("a service that a launcher started for a newer Node ends with it, also by SIGKILL", async () => {
  const service = await startService({ entry: await launcherEntry() });
  const { url } = service;
  expect((await fetch(`${url}/healthz`)).status).toBe(200);
  await service.kill();
  const answers = () =>
    fetch(`${url}/healthz`).then(
      () => true,
      () => false,
    );
  await expect.poll(answers).toBe(false);
  // The data directory becomes free, too.
  await vi.waitFor(() => service.start(), { timeout: 60_000, interval: 500 });
  expect(await service.stop()).toBe(0);
});

test("SIGTERM ends streams with DRAINING, retains a waiting call, and the next start completes it", async () => {
  // Neither the waiting call nor a client that does not read uses the time of the drain.
  const service = await startService({ settings: "drain_ms = 3600000" });
  const agent = connect(service, "caller");
  const sessionId = await agent.newSession();
  const runs = ledger(service);
  const call = { sessionId, callId: "c1", tool: "bash", input: { command: `${runs.append("ran")}; echo done` } };
  const before = read(agent.tools.executeTool(call));
  const ask = await before.until("permissionAsked");
  const watcher = read(connect(service, "watcher").tools.watchSession({ sessionId }));
  await watcher.until("permissionAsked");
  const ends = [before, watcher].map((stream) => refusal(stream.end()));
  const unread = await openUnread(service, sessionId);
  expect(await service.stop()).toBe(0);
  unread.destroy();
  for (const end of await Promise.all(ends)) expect(end).toMatchObject({ code: Code.Unavailable, reason: "DRAINING" });

  await service.start();
  const after = read(connect(service, "caller").tools.executeTool({ ...call, afterSeq: before.lastSeq }));
  const person = connect(service, "approver");
  expect((await person.permissions.listPermissions({ sessionId })).permissions).toEqual([ask]);
  await person.permissions.respondToPermission({ sessionId, permissionId: ask.id, reply: PermissionReply.ONCE });
  expect((await after.end()).state.value).toMatchObject({ output: "done\n" });
  expect(await runs.lines()).toHaveLength(1);
  const rest = read(connect(service, "watcher").tools.watchSession({ sessionId, afterSeq: watcher.lastSeq }));
  await rest.find(({ event }) => event.case === "part" && event.value.state.case === "completed");
  expect(rest.seen).toEqual(after.seen);
});

/** Opens a watch whose client accepts no data: the service cannot send how it ends. */
async function openUnread({ url }: Service, sessionId: string): Promise<ClientHttp2Session> {
  const session = http2Connect(url, { settings: { initialWindowSize: 0 } }).on("error", () => undefined);
  const watch = session.request({
    ":method": "POST",
    ":path": "/opencode.tool.v1.ToolService/WatchSession",
    "content-type": "application/grpc",
    authorization: "Bearer watcher-token-for-tests",
  });
  watch.on("error", () => undefined);
  const message = toBinary(WatchSessionRequestSchema, create(WatchSessionRequestSchema, { sessionId }));
  watch.end(Buffer.concat([Buffer.from([0, 0, 0, 0, message.length]), message]));
  await once(watch, "response");
  return session;
}

test("a service that drains serves approvers and clients of what runs, and refuses new calls", async () => {
  const service = await startService({ settings: "drain_ms = 3600000" });
  const [agent, person] = [connect(service, "caller"), connect(service, "approver")];
  const sessionId = await agent.newSession();
  const runs = ledger(service);
  const command = "echo begun; until [ -e go ]; do sleep 0.02; done; echo done";
  const running = { sessionId, callId: "c1", agent: "free", tool: "bash", input: { command } };
  const stream = read(agent.tools.executeTool(running));
  await stream.until("output");
  const waiting = { sessionId, callId: "c2", tool: "bash", input: { command: runs.append("ran") } };
  const watcher = read(connect(service, "watcher").tools.watchSession({ sessionId }));
  await agent.tools.callTool({ ...waiting, waitMs: 0 });
  const ask = await watcher.until("permissionAsked");
  const ended = stream.end();

  const stopped = service.stop();
  await expect.poll(async () => await (await fetch(`${service.url}/readyz`)).text()).toBe("draining\n");
  expect((await person.permissions.listPermissions({ sessionId })).permissions).toEqual([ask]);
  await person.permissions.respondToPermission({ sessionId, permissionId: ask.id, reply: PermissionReply.ONCE });
  expect((await watcher.until("permissionSettled")).permissionId).toBe(ask.id);
  const { callTool } = agent.tools;
  const refused = { code: Code.Unavailable, reason: "DRAINING" };
  expect(await refusal(callTool({ ...running, callId: "c3" }))).toMatchObject(refused);
  expect(await refusal(callTool({ ...running, callId: "" }))).toMatchObject(refused);
  expect((await callTool({ ...waiting, waitMs: 0 })).part?.state.case).toBe("pending");
  const attached = callTool(running);
  await writeFile(join(service.workspace, "go"), "");
  const result = { state: { value: { output: "begun\ndone\n" } } };
  expect(await ended).toMatchObject(result);
  expect((await attached).part).toMatchObject(result);
  expect(await stopped).toBe(0);
  expect(await runs.lines()).toHaveLength(0);

  await service.start();
  expect((await connect(service, "caller").tools.callTool(waiting)).part?.state.case).toBe("completed");
  expect(await runs.lines()).toHaveLength(1);
});

test("a stop ends the process, whatever still keeps it alive", async () => {
  const service = await startService({
    env: { NODE_OPTIONS: "--import data:text/javascript,setInterval(()=>{},1_000)" },
  });
  expect(await service.stop()).toBe(0);
});

test("a call that takes longer than the drain is ended, and so are its processes", async () => {
  const service = await startService({ settings: `drain_ms = 100\n${unconfined}` });
  const agent = connect(service, "caller");
  const sessionId = await agent.newSession();
  const call = { sessionId, callId: "c1", agent: "free", tool: "bash", input: { command: "echo $$; sleep 600" } };
  const stream = read(agent.tools.executeTool(call));
  const pid = Number(Buffer.from((await stream.until("output")).data).toString());
  expect(await service.stop()).toBe(0);
  await untilDead(pid);
  await service.start();
  const { part } = await connect(service, "caller").tools.callTool(call);
  expect(part?.state.value).toMatchObject({
    reason: ToolErrorReason.CANCELLED,
    error: expect.stringContaining("service was stopped"),
  });
});
