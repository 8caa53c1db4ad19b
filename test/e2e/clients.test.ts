import { Code } from "@connectrpc/connect";
import { describe, expect, test } from "vitest";
import type { SessionEvent } from "../../gen/opencode/tool/v1/event_pb.ts";
import { PermissionReply, ToolEffects, ToolErrorReason } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { connect, kinds, refusal } from "./clients.ts";
import { nameOf, outputOf, read } from "./reading.ts";
import { useService } from "./service.ts";

const service = useService();

/** The events of a stream, to its end or so many. */
async function eventsOf(
  responses: AsyncIterable<{ event?: SessionEvent | undefined }>,
  most = Number.POSITIVE_INFINITY,
) {
  const events: SessionEvent[] = [];
  for await (const { event } of responses) {
    if (event) events.push(event);
    if (events.length === most) break;
  }
  return events;
}

describe.each(Object.entries(kinds))("%s", (_name, open) => {
  const caller = () => connect(service, "caller", open);
  const approver = () => connect(service, "approver", open);

  test("a call asks, a second client approves, it runs and completes", async () => {
    const [agent, person] = [caller(), approver()];
    const sessionId = await agent.newSession();
    const call = { sessionId, callId: "c1", tool: "bash", input: { command: "echo hello", description: "Greet" } };
    const stream = read(agent.tools.executeTool(call));
    const ask = await stream.until("permissionAsked");
    expect(ask).toMatchObject({ sessionId, permission: "bash", patterns: ["echo hello"], tool: { callId: "c1" } });
    expect(ask.preview?.command).toBe("echo hello");
    const { permissions } = await person.permissions.listPermissions({ sessionId });
    expect(permissions.map(({ id }) => id)).toEqual([ask.id]);
    await person.permissions.respondToPermission({ sessionId, permissionId: ask.id, reply: PermissionReply.ONCE });
    const part = await stream.end();
    expect(part.state).toMatchObject({ case: "completed", value: { output: "hello\n", title: "Greet" } });
    expect(part.state.value?.input).toEqual(call.input);
    expect(outputOf(stream.seen)).toBe("hello\n");
    expect(stream.seen.map(nameOf).filter((name, i, all) => name !== all[i - 1])).toEqual([
      "pending",
      "permissionAsked",
      "permissionSettled",
      "running",
      "output",
      "completed",
    ]);
  });

  test("the advice of a person who rejects reaches the model", async () => {
    const [agent, person] = [caller(), approver()];
    const sessionId = await agent.newSession();
    const input = { command: "rm -rf build" };
    const stream = read(agent.tools.executeTool({ sessionId, callId: "c1", tool: "bash", input }));
    const { id: permissionId } = await stream.until("permissionAsked");
    const message = "Löschen Sie nichts: move it to attic/ 📦";
    await person.permissions.respondToPermission({ sessionId, permissionId, reply: PermissionReply.REJECT, message });
    const { state } = await stream.end();
    expect(state).toMatchObject({
      case: "error",
      value: { reason: ToolErrorReason.REJECTED, effects: ToolEffects.NONE },
    });
    expect(state.case === "error" && state.value.error).toContain(message);
  });

  test("every encoding carries the same events", async () => {
    const [agent, other] = [caller(), connect(service, "caller")];
    const sessionId = await agent.newSession();
    const call = { sessionId, callId: "c1", tool: "echo", input: { text: "Grüße 📦", list: [1, null, { a: true }] } };
    const answer = await agent.tools.callTool(call);
    const same = await other.tools.callTool(call);
    expect(answer.part).toEqual(same.part);
    expect(answer.lastSeq).toBe(same.lastSeq);
    const streams = [agent, other].map(({ tools }) => eventsOf(tools.executeTool(call)));
    const [mine, theirs] = await Promise.all(streams);
    expect(mine).toHaveLength(3);
    expect(mine).toEqual(theirs);
    expect(mine?.at(-1)?.event).toEqual({ case: "part", value: answer.part });
    const watched = await eventsOf(other.tools.watchSession({ sessionId }), 3);
    expect(watched).toEqual(mine);
    expect(await eventsOf(agent.tools.watchSession({ sessionId }), 3)).toEqual(watched);
  });

  test("a client that attaches sees the same events", async () => {
    const [agent, second, person] = [caller(), caller(), approver()];
    const sessionId = await agent.newSession();
    const call = { sessionId, callId: "c1", tool: "bash", input: { command: "echo one" } };
    const first = read(agent.tools.executeTool(call));
    const { id: permissionId } = await first.until("permissionAsked");
    const attached = read(second.tools.executeTool(call));
    await attached.until("permissionAsked");
    await person.permissions.respondToPermission({ sessionId, permissionId, reply: PermissionReply.ONCE });
    await Promise.all([first.end(), attached.end()]);
    expect(attached.seen).toEqual(first.seen);
  });

  test("a stream that was cut is resumed without gap or repeat", async () => {
    const [agent, person] = [caller(), approver()];
    const sessionId = await agent.newSession();
    const call = { sessionId, callId: "c1", tool: "bash", input: { command: "echo on" } };
    const cut = new AbortController();
    const before = read(agent.tools.executeTool(call, { signal: cut.signal }));
    const { id: permissionId } = await before.until("permissionAsked");
    cut.abort();
    await expect(before.end()).rejects.toMatchObject({ code: Code.Canceled });
    await person.permissions.respondToPermission({ sessionId, permissionId, reply: PermissionReply.ONCE });
    const after = read(agent.tools.executeTool({ ...call, afterSeq: before.lastSeq }));
    expect((await after.end()).state.case).toBe("completed");
    const whole = read(agent.tools.executeTool(call));
    await whole.end();
    expect([...before.seen, ...after.seen]).toEqual(whole.seen);
  });

  test("a call that waits is cancelled, and so is its ask", async () => {
    const [agent, person] = [caller(), approver()];
    const sessionId = await agent.newSession();
    const stream = read(
      agent.tools.executeTool({ sessionId, callId: "c1", tool: "bash", input: { command: "echo never" } }),
    );
    const { id: permissionId } = await stream.until("permissionAsked");
    const { part } = await agent.tools.cancelTool({ sessionId, callId: "c1", message: "Changed my mind." });
    const cancelled = {
      reason: ToolErrorReason.CANCELLED,
      effects: ToolEffects.NONE,
      error: "Changed my mind.",
    };
    expect(part?.state.value).toMatchObject(cancelled);
    expect((await stream.end()).state.value).toMatchObject(cancelled);
    const late = person.permissions.respondToPermission({ sessionId, permissionId, reply: PermissionReply.ONCE });
    expect(await refusal(late)).toMatchObject({ code: Code.FailedPrecondition, reason: "ASK_CLOSED" });
  });

  test("bad input and an unknown tool end the call with the next step", async () => {
    const agent = caller();
    const sessionId = await agent.newSession();
    const bad = await agent.tools.callTool({ sessionId, callId: "c1", tool: "bash", input: { comand: "ls" } });
    expect(bad.part?.state.value).toMatchObject({ reason: ToolErrorReason.INVALID_INPUT, effects: ToolEffects.NONE });
    expect(bad.part?.state.case === "error" && bad.part.state.value.error).toContain("command");
    const unknown = read(agent.tools.executeTool({ sessionId, callId: "c2", tool: "hammer", input: {} }));
    const { state } = await unknown.end();
    expect(state.value).toMatchObject({ reason: ToolErrorReason.UNKNOWN_TOOL, effects: ToolEffects.NONE });
    expect(state.case === "error" && state.value.error).toMatch(/hammer.*bash.*read.*write/);
  });

  test("an invalid message is refused and its field is named", async () => {
    const agent = caller();
    const refused = await refusal(agent.tools.callTool({ callId: "has blank", tool: "echo" }));
    expect(refused).toMatchObject({
      code: Code.InvalidArgument,
      reason: "INVALID_MESSAGE",
      metadata: { field: "call_id" },
    });
    const streamed = await refusal(read(agent.tools.executeTool({ sessionId: "ses_1" })).end());
    expect(streamed).toMatchObject({ code: Code.InvalidArgument, metadata: { field: "tool" } });
  });

  test("a message that is too large is refused, and the connection stays open", async () => {
    const agent = caller();
    const text = "x".repeat(5 * 1024 * 1024);
    const refused = await refusal(agent.tools.callTool({ tool: "echo", input: { text } }));
    expect(refused.code).toBe(Code.ResourceExhausted);
    const next = await agent.tools.callTool({ tool: "echo", input: { text: "small" } });
    expect(next.part?.state.value).toMatchObject({ output: "small" });
  });

  test("a role that is missing and an answer to one's own call are refused", async () => {
    const [agent, person, admin] = [caller(), approver(), connect(service, "admin", open)];
    expect(await refusal(person.tools.callTool({ tool: "echo" }))).toMatchObject({
      code: Code.PermissionDenied,
      reason: "ROLE_MISSING",
      metadata: { rpc: "opencode.tool.v1.ToolService/CallTool", roles: "caller,admin" },
    });
    const sessionId = await admin.newSession();
    const stream = read(admin.tools.executeTool({ sessionId, callId: "c1", tool: "bash", input: { command: "true" } }));
    const { id: permissionId } = await stream.until("permissionAsked");
    const answer = { sessionId, permissionId, reply: PermissionReply.ONCE };
    expect(await refusal(agent.permissions.respondToPermission(answer))).toMatchObject({ reason: "ROLE_MISSING" });
    expect(await refusal(admin.permissions.respondToPermission(answer))).toMatchObject({
      code: Code.PermissionDenied,
      reason: "OWN_CALL",
    });
    await person.permissions.respondToPermission(answer);
    expect((await stream.end()).state.case).toBe("completed");
  });
});
