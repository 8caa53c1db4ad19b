import { expect, test } from "vitest";
import { ToolEffects, ToolErrorReason } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { OnDisconnect } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { isAlive, untilDead } from "../tools/processes.ts";
import { connect, kinds } from "./clients.ts";
import { ledger } from "./ledger.ts";
import { nameOf, outputOf, read } from "./reading.ts";
import { unconfined, useService } from "./service.ts";

const service = useService({ settings: unconfined });

/** Commands whose processes say their ids: a child, a grandchild, one that left the group. */
const family = [
  "sleep 600 & echo $!",
  "bash -c 'sleep 600 & echo $!; wait' &",
  "setsid bash -c 'echo $$; exec sleep 600' &",
];
/** One more, which ignores SIGTERM. */
const stubborn = `bash -c 'trap "" TERM; echo $$; while :; do sleep 1; done' &`;

/** A call whose processes are known to run. */
async function startFamily(commands: string[], fields: { onDisconnect?: OnDisconnect; timeoutMs?: number } = {}) {
  const agent = connect(service, "caller");
  const sessionId = await agent.newSession();
  const call = {
    sessionId,
    callId: "c1",
    agent: "free",
    tool: "bash",
    input: { command: [...commands, "wait"].join("\n") },
    ...fields,
  };
  const left = new AbortController();
  const stream = read(agent.tools.executeTool(call, { signal: left.signal }));
  while (outputOf(stream.seen).split("\n").length <= commands.length) await stream.until("output");
  const pids = outputOf(stream.seen).trim().split("\n").map(Number);
  expect(await Promise.all(pids.map(isAlive))).toEqual(commands.map(() => true));
  return { agent, call, stream, pids, leave: () => left.abort() };
}

test.concurrent("cancel ends the call and all of its processes", async () => {
  const { agent, call, stream, pids } = await startFamily([...family, stubborn]);
  const { part } = await agent.tools.cancelTool({ ...call, message: "Enough." });
  expect(part?.state.value).toMatchObject({
    reason: ToolErrorReason.CANCELLED,
    effects: ToolEffects.UNKNOWN,
    error: "Enough.",
  });
  expect(await Promise.all(pids.map(isAlive))).toEqual(pids.map(() => false));
  expect(await stream.end()).toEqual(part);
  expect((await agent.tools.cancelTool({ ...call, message: "Again." })).part).toEqual(part);
});

test.concurrent("the deadline of a call ends it and all of its processes", async () => {
  const { stream, pids } = await startFamily(family, { timeoutMs: 8_000 });
  expect((await stream.end()).state.value).toMatchObject({
    reason: ToolErrorReason.TIMEOUT,
    effects: ToolEffects.UNKNOWN,
    error: expect.stringContaining("8000 ms"),
  });
  await Promise.all(pids.map(untilDead));
});

test("the timeout of a command is a result: its output and a note", async () => {
  const agent = connect(service, "caller");
  const sessionId = await agent.newSession();
  const input = { command: "echo before; sleep 600", timeout: 3_000 };
  const { part } = await agent.tools.callTool({ sessionId, callId: "c1", agent: "free", tool: "bash", input });
  expect(part?.state.case).toBe("completed");
  expect(part?.state.case === "completed" && part.state.value.output).toMatch(/^before\n[\s\S]*timeout 3000 ms/);
});

test("a timeout over the limit is bad input", async () => {
  const agent = connect(service, "caller");
  const sessionId = await agent.newSession();
  const call = { sessionId, callId: "c1", tool: "echo", input: { text: "" }, timeoutMs: 3_600_001 };
  expect((await agent.tools.callTool(call)).part?.state.value).toMatchObject({
    reason: ToolErrorReason.INVALID_INPUT,
    error: expect.stringContaining("timeout_ms"),
  });
});

test.concurrent("a caller that leaves with on_disconnect CANCEL takes its call and all processes along", async () => {
  const { agent, call, pids, leave } = await startFamily(family, { onDisconnect: OnDisconnect.CANCEL });
  leave();
  const log = read(agent.tools.watchSession({ sessionId: call.sessionId }));
  const { event } = await log.find((event) => nameOf(event) === "error");
  expect(event).toMatchObject({ value: { state: { value: { reason: ToolErrorReason.CANCELLED } } } });
  await Promise.all(pids.map(untilDead));
});

test.concurrent("a unary caller that leaves with on_disconnect CANCEL takes its call along, too", async () => {
  const agent = connect(service, "caller");
  const sessionId = await agent.newSession();
  const log = read(agent.tools.watchSession({ sessionId }));
  const input = { command: "echo begun; sleep 600" };
  const call = { sessionId, callId: "c1", agent: "free", tool: "bash", input, onDisconnect: OnDisconnect.CANCEL };
  const left = new AbortController();
  const waiting = expect(agent.tools.callTool(call, { signal: left.signal })).rejects.toThrow();
  await log.until("output");
  left.abort();
  await waiting;
  const { event } = await log.find((event) => nameOf(event) === "error");
  expect(event).toMatchObject({ value: { state: { value: { reason: ToolErrorReason.CANCELLED } } } });
});

test.each(Object.entries(kinds))("%s: a caller that just leaves does not end its call", async (_name, open) => {
  const agent = connect(service, "caller", open);
  const sessionId = await agent.newSession();
  const runs = ledger(service);
  const call = { sessionId, callId: "c1", agent: "free", tool: "bash" };
  const input = { command: `echo begun; until [ -e ${sessionId}-go ]; do sleep 0.02; done; ${runs.append("ran")}` };
  const left = new AbortController();
  const stream = read(agent.tools.executeTool({ ...call, input }, { signal: left.signal }));
  await stream.until("output");
  left.abort();
  await expect(stream.end()).rejects.toThrow();
  await agent.tools.callTool({ ...call, callId: "go", input: { command: `touch ${sessionId}-go` } });
  expect((await agent.tools.callTool({ ...call, input })).part?.state.case).toBe("completed");
  expect(await runs.lines()).toHaveLength(1);
});
