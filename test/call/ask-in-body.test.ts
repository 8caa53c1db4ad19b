import { expect, test } from "vitest";
import * as z from "zod";
import { DecisionKind, PermissionAction } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { PermissionReply } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { Ask } from "../../src/core/ask.ts";
import { defineTool } from "../../src/tool/define-tool.ts";
import { read } from "../e2e/reading.ts";
import { serve } from "./server.ts";

/** Returns the audit of a call whose body makes these asks, while an approver approves every request. */
async function auditOf(asks: readonly Ask[], planned: readonly Ask[] = []) {
  const tool = defineTool({
    name: "asker",
    description: "Asks while it runs.",
    input: z.object({}),
    plan: () => ({ title: "asker", asks: planned }),
    async execute(_input, ctx) {
      for (const ask of asks) await ctx.ask(ask);
      return { output: "done" };
    },
  });
  const { agent, person } = await serve([tool]);
  const sessionId = "ses_test";
  await agent.sessions.createSession({ sessionId });
  for await (const { event } of agent.tools.executeTool({ sessionId, callId: "c1", tool: "asker", input: {} })) {
    if (event?.event.case !== "permissionAsked") continue;
    const permissionId = event.event.value.id;
    await person.permissions.respondToPermission({ sessionId, permissionId, reply: PermissionReply.ONCE });
  }
  const stream = read(agent.tools.executeTool({ sessionId, callId: "c1", tool: "asker", input: {} }));
  expect((await stream.end()).state.case).toBe("completed");
  const { entries } = await person.permissions.listDecisions({ sessionId });
  return entries.map(({ record }) => [
    record?.kind,
    record?.decisions.map(({ permission, pattern, action }) => [permission, pattern, action]),
  ]);
}

const { ALLOW, ASK } = PermissionAction;

test("an ask of a body that rules allow is recorded as allowed", async () => {
  expect(await auditOf([{ permission: "read", patterns: ["notes.txt"] }])).toEqual([
    [DecisionKind.ALLOWED, []],
    [DecisionKind.ALLOWED, [["read", "notes.txt", ALLOW]]],
  ]);
});

test("an ask of a body that an approver approves is recorded as asked and settled", async () => {
  expect(await auditOf([{ permission: "deploy", patterns: ["production"] }])).toEqual([
    [DecisionKind.ALLOWED, []],
    [DecisionKind.ASKED, [["deploy", "production", ASK]]],
    [DecisionKind.SETTLED, [["deploy", "production", ASK]]],
  ]);
});

test("an ask of a body that the approval of the whole call covers is recorded as allowed", async () => {
  const whole = { permission: "deploy", patterns: ["everything"], wholeCall: true } as const;
  const records = await auditOf([{ permission: "deploy", patterns: ["production"] }], [whole]);
  expect(records.at(-1)).toEqual([DecisionKind.ALLOWED, [["deploy", "production", ASK]]]);
});
