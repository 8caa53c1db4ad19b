import { once } from "node:events";
import { writeFile } from "node:fs/promises";
import { createServer, connect as dial, type Socket } from "node:net";
import { join } from "node:path";
import { Code } from "@connectrpc/connect";
import { expect, onTestFinished, test } from "vitest";
import type { SessionEvent } from "../../gen/opencode/tool/v1/event_pb.ts";
import { PermissionReply } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { type Clients, connect, kinds, refusal } from "./clients.ts";
import { nameOf, outputOf, read } from "./reading.ts";
import { useService } from "./service.ts";

const service = useService();

test("a session that is watched after any number sends exactly the rest, also what comes later", async () => {
  const agent = connect(service, "caller");
  const sessionId = await sessionWithHistory(agent);
  const length = Number((await agent.sessions.getSession({ sessionId })).session?.lastSeq);
  const all = await take(agent.tools.watchSession({ sessionId }), length);
  expect(all.map(({ seq }) => Number(seq))).toEqual(Array.from({ length }, (_, i) => i + 1));
  for (let cut = 0; cut < length; cut += 1) {
    const rest = await take(agent.tools.watchSession({ sessionId, afterSeq: BigInt(cut) }), length - cut);
    expect(rest).toEqual(all.slice(cut));
  }
  const later = take(agent.tools.watchSession({ sessionId, afterSeq: BigInt(length) }), 1);
  await agent.tools.callTool({ sessionId, callId: "later", tool: "echo", input: { text: "later" } });
  expect((await later).map(({ seq }) => Number(seq))).toEqual([length + 1]);
});

test("two watchers see the same events while they happen", async () => {
  const agent = connect(service, "caller");
  const sessionId = await agent.newSession();
  const watchers = (["watcher", "approver"] as const).map((who) =>
    read(connect(service, who).tools.watchSession({ sessionId })),
  );
  const ends = watchers.map((watcher) => watcher.find((event) => nameOf(event) === "completed"));
  const input = { command: "for i in 1 2 3; do echo $i; done" };
  await agent.tools.callTool({ sessionId, callId: "c1", agent: "free", tool: "bash", input });
  await Promise.all(ends);
  expect(watchers[0]?.seen).toEqual(watchers[1]?.seen);
  expect(outputOf(watchers[0]?.seen ?? [])).toBe("1\n2\n3\n");
});

test("a watcher of one call learns the numbers of the others without their events", async () => {
  const agent = connect(service, "caller");
  const sessionId = await sessionWithHistory(agent);
  const own = read(agent.tools.watchSession({ sessionId, callId: "c2" }));
  await own.find((event) => nameOf(event) === "completed");
  expect(own.seen.map(nameOf).slice(0, 2)).toEqual(["pending", "running"]);
  expect(own.seen[0]?.seq).toBeGreaterThan(1n);
});

test("a number beyond the end is data_loss and names what there is", async () => {
  const agent = connect(service, "caller");
  const sessionId = await sessionWithHistory(agent);
  const { session } = await agent.sessions.getSession({ sessionId });
  const beyond = { code: Code.DataLoss, reason: "STORE_CHANGED" };
  const { storeId } = await agent.tools.getServerInfo({});
  const metadata = { session_id: sessionId, last_seq: String(session?.lastSeq), store_id: storeId };
  const watched = read(agent.tools.watchSession({ sessionId, afterSeq: 1_000n }));
  expect(await refusal(watched.end())).toMatchObject({ ...beyond, metadata });
  const call = { sessionId, callId: "waits", tool: "bash", input: { command: "true" } };
  await read(agent.tools.executeTool(call)).until("permissionAsked");
  expect(await refusal(read(agent.tools.executeTool({ ...call, afterSeq: 1_000n })).end())).toMatchObject(beyond);
});

test("a snapshot has the open calls and asks as they are, a mark, then what happens", async () => {
  const [agent, person] = [connect(service, "caller"), connect(service, "approver")];
  const sessionId = await sessionWithHistory(agent);
  const stream = read(agent.tools.executeTool({ sessionId, callId: "c9", tool: "bash", input: { command: "echo 9" } }));
  const ask = await stream.until("permissionAsked");
  const messages = agent.tools.watchSession({ sessionId, snapshot: true })[Symbol.asyncIterator]();
  const seen: string[] = [];
  for (;;) {
    const { value } = await messages.next();
    if (value?.snapshotEnd) break;
    if (value?.event) seen.push(nameOf(value.event));
  }
  expect(seen).toEqual(["pending", "permissionAsked"]);
  await person.permissions.respondToPermission({ sessionId, permissionId: ask.id, reply: PermissionReply.ONCE });
  const next = await nextEvent(messages);
  expect(next?.event.case).toBe("permissionSettled");
});

test.each(Object.entries(kinds))("%s: a socket that breaks while a tool writes loses nothing", async (_name, open) => {
  const agent = connect(service, "caller", open);
  const sessionId = await agent.newSession();
  const go = `${sessionId}-go`;
  const command = `seq 1 500; until [ -e ${go} ]; do sleep 0.02; done; seq 501 900`;
  const call = { sessionId, callId: "c1", agent: "free", tool: "bash", input: { command } };
  const line = await breakable(service.url);
  const cut = read(connect(line, "caller", open).tools.executeTool(call));
  await cut.until("output");
  line.break();
  await expect(cut.end()).rejects.toThrow();
  const resumed = read(agent.tools.executeTool({ ...call, afterSeq: cut.lastSeq }));
  await writeFile(join(service.workspace, go), "");
  await resumed.end();
  const whole = read(agent.tools.executeTool(call));
  await whole.end();
  expect([...cut.seen, ...resumed.seen]).toEqual(whole.seen);
  expect(outputOf(whole.seen).split("\n")).toHaveLength(901);
});

test("watching asks: those that are open, a mark, then each that opens or is settled", async () => {
  const [agent, person] = [connect(service, "caller"), connect(service, "approver")];
  const sessionId = await agent.newSession();
  const start = (callId: string) =>
    read(agent.tools.executeTool({ sessionId, callId, tool: "bash", input: { command: `echo ${callId}` } }));
  const first = await start("c1").until("permissionAsked");
  const messages = person.permissions.watchPermissions({ sessionId })[Symbol.asyncIterator]();
  const next = async () => {
    const { value } = await messages.next();
    if (value?.snapshotEnd) return "mark";
    const { event } = value?.event ?? (await nextEvent(messages)) ?? {};
    if (event?.case === "permissionAsked") return `asked ${event.value.id}`;
    return event?.case === "permissionSettled" ? `settled ${event.value.permissionId}` : event?.case;
  };
  expect([await next(), await next()]).toEqual([`asked ${first.id}`, "mark"]);
  const second = await start("c2").until("permissionAsked");
  expect(await next()).toBe(`asked ${second.id}`);
  await person.permissions.respondToPermission({ sessionId, permissionId: first.id, reply: PermissionReply.REJECT });
  expect(await next()).toBe(`settled ${first.id}`);
  await agent.tools.cancelTool({ sessionId, callId: "c2" });
  expect(await next()).toBe(`settled ${second.id}`);
});

test("a caller sees only the asks of its sessions", async () => {
  const [agent, stranger] = [connect(service, "caller"), connect(service, "stranger")];
  const [theirs, own] = [await agent.newSession(), await stranger.newSession()];
  const open = (clients: Clients, sessionId: string) =>
    read(clients.tools.executeTool({ sessionId, callId: "c1", tool: "bash", input: { command: "true" } })).until(
      "permissionAsked",
    );
  await open(agent, theirs);
  const messages = stranger.permissions.watchPermissions({})[Symbol.asyncIterator]();
  expect((await messages.next()).value?.snapshotEnd).toBe(true);
  await agent.tools.cancelTool({ sessionId: theirs, callId: "c1" });
  const ask = await open(stranger, own);
  expect((await nextEvent(messages))?.event.value).toMatchObject({ id: ask.id });
  expect((await stranger.permissions.listPermissions({})).permissions.map(({ id }) => id)).toEqual([ask.id]);
});

test("an ended call that is resumed after its last number sends nothing more", async () => {
  const agent = connect(service, "caller");
  const sessionId = await agent.newSession();
  const call = { sessionId, callId: "c1", tool: "echo", input: { text: "one" } };
  const whole = read(agent.tools.executeTool(call));
  await whole.end();
  const rest = await Array.fromAsync(agent.tools.executeTool({ ...call, afterSeq: whole.lastSeq }));
  expect(rest.flatMap(({ event }) => event ?? [])).toEqual([]);
});

/** A session in which two calls have ended. */
async function sessionWithHistory(agent: Clients): Promise<string> {
  const sessionId = await agent.newSession();
  await agent.tools.callTool({ sessionId, callId: "c1", tool: "echo", input: { text: "one" } });
  const input = { command: "echo two" };
  await agent.tools.callTool({ sessionId, callId: "c2", agent: "free", tool: "bash", input });
  return sessionId;
}

/** Heartbeats are left out: they come whenever it was quiet for a while. */
async function nextEvent(messages: AsyncIterator<{ event?: SessionEvent | undefined }>) {
  for (;;) {
    const { value, done } = await messages.next();
    if (done || value.event) return value?.event;
  }
}

async function take(stream: AsyncIterable<{ event?: SessionEvent | undefined }>, count: number) {
  const events: SessionEvent[] = [];
  for await (const { event } of stream) {
    if (event) events.push(event);
    if (events.length === count) break;
  }
  return events;
}

/** A way to the service that can be broken in the middle of whatever it carries. */
async function breakable(url: string): Promise<{ url: string; break(): void }> {
  const sockets: Socket[] = [];
  const server = createServer((near) => {
    const far = dial(Number(new URL(url).port), "127.0.0.1");
    sockets.push(near, far);
    near.on("error", () => far.destroy()).pipe(far);
    far.on("error", () => near.destroy()).pipe(near);
  });
  await once(server.listen(0, "127.0.0.1"), "listening");
  onTestFinished(() => void server.close());
  const address = server.address();
  if (address === null || typeof address === "string") throw new Error("the server has no port");
  return {
    url: `http://127.0.0.1:${address.port}`,
    break() {
      for (const socket of sockets) socket.resetAndDestroy();
    },
  };
}
