import { expect, test } from "vitest";
import { connect } from "./clients.ts";
import { startService } from "./service.ts";

test("a session keeps its list over a restart, and a subagent's session has its own", async () => {
  const service = await startService();
  const parent = await connect(service, "caller").newSession();
  const todos = [{ content: "build", status: "in_progress", priority: "high" }];
  const call = (callId: string, tool: string, input = {}, sessionId = parent) =>
    connect(service, "caller").tools.callTool({ sessionId, callId, tool, input });
  expect((await call("c1", "todowrite", { todos })).part?.state.case).toBe("completed");
  await service.kill();
  await service.start();
  expect((await call("c2", "todoread")).part?.state.value).toMatchObject({ title: "1 todo", metadata: { todos } });
  const { session } = await connect(service, "caller").sessions.createSession({ parentSessionId: parent });
  expect((await call("c3", "todoread", {}, session?.id)).part?.state.value).toMatchObject({ output: "[]" });
});
