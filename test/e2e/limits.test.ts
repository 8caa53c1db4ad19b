import { execFileSync } from "node:child_process";
import { once } from "node:events";
import { connect as connectSocket } from "node:net";
import { Code } from "@connectrpc/connect";
import { expect, onTestFinished, test } from "vitest";
import { RetryInfoSchema } from "../../gen/google/rpc/error_details_pb.ts";
import { ToolEffects, ToolErrorReason } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { connectHttp } from "../mcp/clients.ts";
import { connect, refusal } from "./clients.ts";
import { read } from "./reading.ts";
import { startService, useService } from "./service.ts";

const service = useService({ settings: "[limits]\nrunning_calls = 3\nopen_asks = 2\ninput_bytes = 2048" });

/** A session and a way to make a call of it wait for a person. */
async function begin() {
  const agent = connect(service, "caller");
  const sessionId = await agent.newSession();
  const call = (callId: string) => ({ sessionId, callId, tool: "bash", input: { command: `echo ${callId}` } });
  return { agent, sessionId, call };
}

test("GetServerInfo returns the limits in force", async () => {
  const { limits } = await connect(service, "watcher").tools.getServerInfo({});
  expect(limits).toMatchObject({ runningCalls: 3, openAsks: 2, inputBytes: 2048n, requestBytes: 4_194_304n });
});

test("an input over the limit is refused by name, and its call id stays free", async () => {
  const { agent, sessionId } = await begin();
  const call = { sessionId, callId: "c1", tool: "echo" };
  expect(await refusal(agent.tools.callTool({ ...call, input: { text: "x".repeat(2048) } }))).toMatchObject({
    code: Code.InvalidArgument,
    reason: "INVALID_MESSAGE",
    metadata: { field: "input" },
  });
  const { part } = await agent.tools.callTool({ ...call, input: { text: "x".repeat(2000) } });
  expect(part?.state.case).toBe("completed");
});

test("one permission request too many ends its call and names the limit", async () => {
  const { agent, call } = await begin();
  for (const callId of ["c1", "c2"]) await read(agent.tools.executeTool(call(callId))).until("permissionAsked");
  const { state } = await read(agent.tools.executeTool(call("c3"))).end();
  expect(state).toMatchObject({
    case: "error",
    value: { reason: ToolErrorReason.FAILED, effects: ToolEffects.NONE, error: expect.stringMatching(/2 .*asks/) },
  });
});

test("one open call too many is refused with when to retry; one that is there is still attached to", async () => {
  const { agent, sessionId, call } = await begin();
  const sleeping = (callId: string) => ({ ...call(callId), agent: "free", input: { command: "echo up; sleep 600" } });
  const open = ["c1", "c2", "c3"].map((callId) => read(agent.tools.executeTool(sleeping(callId))));
  await Promise.all(open.map((stream) => stream.until("output")));
  const refused = await refusal(agent.tools.callTool(call("c4")));
  expect(refused).toMatchObject({ code: Code.ResourceExhausted, reason: "QUOTA_EXCEEDED" });
  expect(refused.error.findDetails(RetryInfoSchema)).toMatchObject([{ retryDelay: { seconds: 1n } }]);
  expect((await agent.tools.callTool({ ...sleeping("c1"), waitMs: 0 })).part?.state.case).toBe("running");
  await agent.tools.cancelTool({ sessionId, callId: "c1" });
  await read(agent.tools.executeTool(call("c4"))).until("permissionAsked");
  await agent.sessions.closeSession({ sessionId });
});

test("so many requests stay open for more than a day; those of an MCP client, and further ones, do for a day", async () => {
  const approval = '[[approval]]\npermission = "bash"\npattern = "echo *"\nask = "30d"\n';
  const settings = `mcp_hold_ms = 1\n[limits]\nlong_asks = 1\n${approval}`;
  const server = await startService({ settings });
  const client = await connectHttp(server);
  onTestFinished(() => client.close());
  await client.callTool({ name: "bash", arguments: { command: "echo mcp" } });
  const approver = connect(server, "approver");
  const opened = async () => (await approver.permissions.listPermissions({})).permissions;
  await expect.poll(async () => (await opened()).length).toBe(1);
  const agent = connect(server, "caller");
  for (const command of ["echo one", "echo two"]) {
    const call = { sessionId: await agent.newSession(), tool: "bash", input: { command } };
    await read(agent.tools.executeTool(call)).until("permissionAsked");
  }
  const of = (await opened()).map(({ display, created, expires, warnings }) => ({
    ...{ asked: display[0], days: Math.round((expires - created) / 86_400_000), warnings },
  }));
  const why = "open for a day only: as many requests as long_asks allows (1) stay open for longer";
  expect(of).toEqual([
    { asked: "echo mcp", days: 1, warnings: [] },
    { asked: "echo one", days: 30, warnings: [] },
    { asked: "echo two", days: 1, warnings: [why] },
  ]);
});

test("idle connections leave descriptors for commands", async () => {
  const small = await startService({ maxFiles: 256 });
  const agent = connect(small, "caller");
  const call = { sessionId: await agent.newSession(), tool: "bash", input: { command: "echo ran" }, agent: "free" };
  const { port, hostname } = new URL(small.url);
  const sockets = Array.from({ length: 300 }, () => connectSocket(Number(port), hostname));
  onTestFinished(() => {
    for (const socket of sockets) socket.destroy();
  });
  await Promise.all(
    sockets.map((socket) =>
      once(
        socket.on("error", () => undefined),
        "connect",
      ),
    ),
  );
  for (const callId of ["c1", "c2", "c3"])
    expect((await agent.tools.callTool({ ...call, callId })).part?.state.case).toBe("completed");
});

test.each([
  ["descriptors", "nofile", 16, /run.*EMFILE.*raise its limit/],
  ["processes", "nproc", 1, /nothing has run.*EAGAIN.*raise its limit/],
])(
  "a command that cannot be started for want of %s has no effects, and the next one runs",
  async (_, limit, few, why) => {
    // The kernel counts the processes of every user but root.
    const uid = 61_004;
    const small = await startService({ uid });
    const agent = connect(small, "caller");
    // Each in a session without a sandbox that waits, in which a command starts whatever the limit.
    const run = async (callId: string) => {
      const sessionId = await agent.newSession();
      const input = { command: "echo ran" };
      return (await agent.tools.callTool({ sessionId, callId, tool: "bash", input, agent: "free" })).part;
    };
    await run("before");
    // The process that starts commands has the limits of the service, which started it.
    const starter = execFileSync("pgrep", ["-P", `${small.pid}`, "-f", "spawn-process"])
      .toString()
      .trim();
    const limitTo = (count: number) => {
      for (const pid of [small.pid, starter])
        execFileSync("prlimit", [`--pid=${pid}`, `--${limit}=${count}:`], { uid, gid: uid });
    };
    limitTo(few);
    const part = await run("without");
    limitTo(4_096);
    expect(part?.state.value).toMatchObject({
      reason: ToolErrorReason.FAILED,
      effects: ToolEffects.NONE,
      error: expect.stringMatching(why),
    });
    expect((await run("after"))?.state.case).toBe("completed");
  },
);
