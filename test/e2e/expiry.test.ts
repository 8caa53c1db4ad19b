import { Code } from "@connectrpc/connect";
import { expect, test } from "vitest";
import { PermissionOutcome, PermissionSettledSchema } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { PermissionReply, ToolEffects, ToolErrorReason } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { connect, kinds, refusal } from "./clients.ts";
import { read } from "./reading.ts";
import { useService } from "./service.ts";

const service = useService({ settings: "ask_ms = 200" });

test("a question that nobody answers in time ends its call", async () => {
  const call = { tool: "question", input: { question: "Go on?" } };
  const { part } = await connect(service, "caller").tools.callTool(call);
  expect(part?.state.value).toMatchObject({
    reason: ToolErrorReason.EXPIRED,
    error: "Nobody answered the question in time. Go on without an answer.",
  });
});

test.concurrent.each(Object.entries(kinds))(
  "%s: an ask that nobody answers ends the call, and takes no answer afterwards",
  async (_name, open) => {
    const [agent, person] = [connect(service, "caller", open), connect(service, "approver", open)];
    const sessionId = await agent.newSession();
    const stream = read(
      agent.tools.executeTool({ sessionId, callId: "c1", tool: "bash", input: { command: "echo never" } }),
    );
    const ask = await stream.until("permissionAsked");
    expect(ask.expires - ask.created).toBeLessThanOrEqual(200);
    expect(await stream.until("permissionSettled")).toMatchObject({ outcome: PermissionOutcome.EXPIRED, by: "" });
    expect((await stream.end()).state.value).toMatchObject({
      reason: ToolErrorReason.EXPIRED,
      effects: ToolEffects.NONE,
    });
    const late = await refusal(
      person.permissions.respondToPermission({ sessionId, permissionId: ask.id, reply: PermissionReply.ONCE }),
    );
    expect(late).toMatchObject({ code: Code.FailedPrecondition, reason: "ASK_CLOSED" });
    expect(late.error.findDetails(PermissionSettledSchema)).toMatchObject([{ outcome: PermissionOutcome.EXPIRED }]);
    expect((await person.permissions.listPermissions({ sessionId })).permissions).toEqual([]);
  },
);
