import { expect, test } from "vitest";
import * as z from "zod";
import { ToolErrorReason } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { openStore } from "../../src/compose/store.ts";
import { defineTool } from "../../src/tool/define-tool.ts";
import { serve } from "./server.ts";

const hold = defineTool({
  name: "hold",
  description: "Waits until it is stopped.",
  input: z.object({}),
  plan: async () => ({ title: "hold", asks: [] }),
  execute: (_input, { signal }) =>
    new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason))),
});

test("a call that is accepted but not launched when its session closes is cancelled", async () => {
  const [accepted, looked] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
  let isClosing = false;
  const { agent } = await serve([hold], {
    async open(config, log) {
      const store = await openStore(config, log);
      const { openCall, closeSession, getCall } = store.calls;
      const calls: typeof store.calls = {
        ...store.calls,
        async openCall(opened) {
          const result = await openCall(opened);
          accepted.resolve();
          await looked.promise;
          return result;
        },
        async closeSession(sessionId) {
          isClosing = true;
          return await closeSession(sessionId);
        },
        async getCall(sessionId, callId) {
          const found = await getCall(sessionId, callId);
          // After the step that follows this read.
          if (isClosing) setImmediate(looked.resolve);
          return found;
        },
      };
      return { ...store, calls };
    },
  });
  const { session } = await agent.sessions.createSession({});
  const sessionId = session?.id ?? "";
  const called = agent.tools.callTool({ sessionId, callId: "c1", tool: "hold", input: {} });
  await accepted.promise;
  await agent.sessions.closeSession({ sessionId });
  expect((await called).part?.state.value).toMatchObject({ reason: ToolErrorReason.CANCELLED });
});
