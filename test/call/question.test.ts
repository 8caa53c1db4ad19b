import { expect, test } from "vitest";
import { PermissionReply as Reply } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { openStore } from "../../src/compose/store.ts";
import { question } from "../../src/tools/question.ts";
import { read } from "../e2e/reading.ts";
import { serve } from "./server.ts";

test("an approval without answers, as a replica of an earlier version records it, asks again", async () => {
  let settled = 0;
  const open: typeof openStore = async (config, log) => {
    const opened = await openStore(config, log);
    const settle: typeof opened.permissions.settle = async (settlement) => {
      settled += 1;
      if (settled > 1) return await opened.permissions.settle(settlement);
      const ends = settlement.settled.map((end) => ({ ...end, answers: [] }));
      // Such a replica does not start the call with the settlement.
      const calls = settlement.calls.map(({ start: _, ...call }) => call);
      return await opened.permissions.settle({ ...settlement, settled: ends, calls });
    };
    const permissions = new Proxy(opened.permissions, {
      get: (target, name) => (name === "settle" ? settle : Reflect.get(target, name)),
    });
    return { ...opened, permissions };
  };
  const { agent, person } = await serve([question], { open });
  const sessionId = "ses_test";
  await agent.sessions.createSession({ sessionId });
  const stream = read(
    agent.tools.executeTool({ sessionId, callId: "c1", tool: "question", input: { question: "Go on?" } }),
  );
  const answer = { sessionId, reply: Reply.ONCE, answers: [{ values: ["Yes"] }] };
  const first = await stream.until("permissionAsked");
  await person.permissions.respondToPermission({ ...answer, permissionId: first.id });
  const second = await stream.until("permissionAsked");
  await person.permissions.respondToPermission({ ...answer, permissionId: second.id });
  expect((await stream.end()).state.value).toMatchObject({ metadata: { answers: [["Yes"]] } });
});
