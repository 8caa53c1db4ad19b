import { randomUUID } from "node:crypto";
import type { JsonObject } from "@bufbuild/protobuf";
import { Code } from "@connectrpc/connect";
import { describe, expect, test } from "vitest";
import { PermissionOutcome } from "../../gen/opencode/tool/v1/permission_pb.ts";
import {
  type PermissionRequest,
  PermissionReply as Reply,
  ToolErrorReason,
} from "../../gen/opencode/tool/v1/tool_pb.ts";
import { connect, refusal } from "./clients.ts";
import { read } from "./reading.ts";
import { useService } from "./service.ts";

const service = useService({
  settings: '[permission]\nbash = { "*" = "ask", "echo allowed" = "allow", "echo denied" = "deny" }\n',
});

/** A bash call that waits for a person, and what that person can do. */
async function openAsk(input: JsonObject) {
  const agent = connect(service, "caller");
  const person = connect(service, "approver");
  const sessionId = await agent.newSession();
  const callId = randomUUID();
  const stream = read(agent.tools.executeTool({ sessionId, callId, tool: "bash", input }));
  const answer = (
    { id: permissionId }: PermissionRequest,
    fields: { reply?: Reply; input?: JsonObject; replyId?: string },
  ) => person.permissions.respondToPermission({ reply: Reply.ONCE, ...fields, sessionId, permissionId });
  return { agent, sessionId, callId, stream, ask: await stream.until("permissionAsked"), answer };
}

describe("edited arguments", () => {
  test("are asked with their own preview and run as approved; model and watchers get the change", async () => {
    const { agent, sessionId, callId, stream, ask, answer } = await openAsk({ command: "echo first" });
    await answer(ask, { input: { command: "echo second" } });
    expect(await stream.until("permissionSettled")).toMatchObject({
      permissionId: ask.id,
      outcome: PermissionOutcome.EDITED,
      by: "approver",
      message: 'command: was "echo first", now "echo second"',
    });
    expect(await stream.until("part")).toMatchObject({
      state: { case: "pending", value: { input: { command: "echo second" } } },
      originalInput: { command: "echo first" },
      editedBy: "approver",
    });
    const asked = await stream.until("permissionAsked");
    expect(asked).toMatchObject({ patterns: ["echo second"], preview: { command: "echo second" } });
    expect(asked.digest).not.toBe(ask.digest);
    await answer(asked, {});
    const part = await stream.end();
    expect(part.state).toMatchObject({ case: "completed", value: { input: { command: "echo second" } } });
    expect(part.state.value).toMatchObject({
      output:
        'second\n\n\nThe user changed the arguments of this call before it ran: command: was "echo first", now "echo second"',
    });
    // What the caller sent is still what names the call.
    const input = { command: "echo first" };
    const attached = await agent.tools.callTool({ sessionId, callId, tool: "bash", input });
    expect(attached.part?.state.case).toBe("completed");
  });

  test("run at once where a rule allows them, and never where one denies them", async () => {
    const allowed = await openAsk({ command: "echo first" });
    await allowed.answer(allowed.ask, { input: { command: "echo allowed" } });
    expect((await allowed.stream.end()).state.case).toBe("completed");
    const denied = await openAsk({ command: "echo first" });
    await denied.answer(denied.ask, { input: { command: "echo denied" } });
    const { state } = await denied.stream.end();
    expect(state.value).toMatchObject({
      reason: ToolErrorReason.DENIED,
      error: expect.stringContaining("The user changed the arguments of this call"),
    });
  });

  test("that the tool cannot take are refused, and the ask stays open", async () => {
    const { stream, ask, answer } = await openAsk({ command: "echo first" });
    expect(await refusal(answer(ask, { input: { command: 7 } }))).toMatchObject({
      code: Code.InvalidArgument,
      reason: "INVALID_INPUT",
      message: expect.stringContaining("command"),
    });
    await answer(ask, {});
    expect((await stream.end()).state.case).toBe("completed");
  });

  test("go with once only", async () => {
    const { ask, answer } = await openAsk({ command: "echo first" });
    const input = { command: "echo second" };
    for (const reply of [Reply.ALWAYS, Reply.REJECT]) {
      expect(await refusal(answer(ask, { reply, input }))).toMatchObject({ code: Code.InvalidArgument });
    }
  });

  test("that are the old ones approve the call", async () => {
    const { stream, ask, answer } = await openAsk({ command: "echo first", timeout: 5_000 });
    await answer(ask, { input: { timeout: 5_000, command: "echo first" } });
    const part = await stream.end();
    expect(part.state.case).toBe("completed");
    expect(part).toMatchObject({ editedBy: "" });
  });

  test("end all asks of the call; an edit that is sent again is fine, another one under its id is not", async () => {
    const { stream, ask, answer } = await openAsk({ command: "echo first", workdir: "/tmp" });
    const other = await stream.until("permissionAsked");
    expect([ask.permission, other.permission]).toEqual(["external_directory", "bash"]);
    const input = { command: "echo second" };
    await answer(other, { input, replyId: "r1" });
    await answer(other, { input, replyId: "r1" });
    const outcomes = [await stream.until("permissionSettled"), await stream.until("permissionSettled")];
    expect(outcomes).toMatchObject([
      { permissionId: other.id, outcome: PermissionOutcome.EDITED, settledWith: "" },
      { permissionId: ask.id, outcome: PermissionOutcome.EDITED, settledWith: other.id },
    ]);
    expect(await refusal(answer(other, { input: { command: "echo third" }, replyId: "r1" }))).toMatchObject({
      reason: "REPLY_ID_REUSED",
    });
    expect(await refusal(answer(ask, {}))).toMatchObject({ reason: "ALREADY_ANSWERED" });
    expect(await stream.until("permissionAsked")).toMatchObject({ permission: "bash", patterns: ["echo second"] });
  });

  test("survive the service, which then asks about them", async () => {
    const { sessionId, callId, stream, ask, answer } = await openAsk({ command: "echo first" });
    await answer(ask, { input: { command: "echo second" } });
    const asked = await stream.until("permissionAsked");
    await service.kill();
    await service.start();
    const person = connect(service, "approver");
    const { permissions } = await person.permissions.listPermissions({ sessionId });
    expect(permissions.map(({ id, patterns }) => [id, patterns])).toEqual([[asked.id, ["echo second"]]]);
    await person.permissions.respondToPermission({ sessionId, permissionId: asked.id, reply: Reply.ONCE });
    const input = { command: "echo first" };
    const { part } = await connect(service, "caller").tools.callTool({ sessionId, callId, tool: "bash", input });
    expect(part?.state.value).toMatchObject({ output: expect.stringMatching(/^second\n/) });
  });
});
