import { Code } from "@connectrpc/connect";
import { expect, test } from "vitest";
import { connect, refusal } from "./clients.ts";
import { ledger } from "./ledger.ts";
import { read } from "./reading.ts";
import { useService } from "./service.ts";

const service = useService();

/** A call that runs without a question and leaves a line each time it does. */
async function recordedCall() {
  const agent = connect(service, "caller");
  const sessionId = await agent.newSession();
  const runs = ledger(service);
  const input = { command: `${runs.append("ran")}; echo done`, description: "Record it" };
  return { agent, runs, call: { sessionId, callId: "c1", agent: "free", tool: "bash", input } };
}

test("the same call again has the same result and does not run again", async () => {
  const { agent, runs, call } = await recordedCall();
  const first = await agent.tools.callTool(call);
  expect(first.part?.state.case).toBe("completed");
  expect((await agent.tools.callTool(call)).part).toEqual(first.part);
  expect(await read(agent.tools.executeTool(call)).end()).toEqual(first.part);
  expect(await runs.lines()).toHaveLength(1);
});

test("twenty equal calls at once are one", async () => {
  const { agent, runs, call } = await recordedCall();
  const results = await Promise.all(Array.from({ length: 20 }, () => agent.tools.callTool(call)));
  expect(new Set(results.map(({ part }) => part?.id)).size).toBe(1);
  expect(new Set(results.map(({ part }) => part?.state.case))).toEqual(new Set(["completed"]));
  expect(await runs.lines()).toHaveLength(1);
});

test("the order of the input's fields does not make it another call", async () => {
  const { agent, runs, call } = await recordedCall();
  await agent.tools.callTool(call);
  const { command, description } = call.input;
  await agent.tools.callTool({ ...call, input: { description, command } });
  expect(await runs.lines()).toHaveLength(1);
});

test("a call id that is used for another input or tool is refused, and nothing runs", async () => {
  const { agent, runs, call } = await recordedCall();
  const { sessionId, callId } = call;
  await agent.tools.callTool({ sessionId, callId, tool: "echo", input: { text: "first" } });
  const reused = {
    code: Code.AlreadyExists,
    reason: "CALL_ID_REUSED",
    metadata: { call_id: callId, tool: "echo" },
  };
  expect(await refusal(agent.tools.callTool(call))).toMatchObject(reused);
  const other = { sessionId, callId, tool: "echo", input: { text: "second" } };
  expect(await refusal(read(agent.tools.executeTool(other)).end())).toMatchObject(reused);
  expect(await runs.lines()).toHaveLength(0);
});

test("the same call id in another session is another call", async () => {
  const { agent, runs, call } = await recordedCall();
  await agent.tools.callTool(call);
  await agent.tools.callTool({ ...call, sessionId: await agent.newSession() });
  expect(await runs.lines()).toHaveLength(2);
});

test("a call that expects another store is data_loss, and nothing runs", async () => {
  const { agent, runs, call } = await recordedCall();
  const refused = await refusal(agent.tools.callTool({ ...call, expectedStoreId: "another" }));
  const { storeId } = await agent.tools.getServerInfo({});
  expect(refused).toMatchObject({ code: Code.DataLoss, reason: "STORE_CHANGED", metadata: { store_id: storeId } });
  expect(await runs.lines()).toHaveLength(0);
  await agent.tools.callTool({ ...call, expectedStoreId: storeId });
  expect(await runs.lines()).toHaveLength(1);
});
