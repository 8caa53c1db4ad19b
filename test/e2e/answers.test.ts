import { Code } from "@connectrpc/connect";
import { expect, test } from "vitest";
import { PermissionOutcome, PermissionSettledSchema } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { PermissionReply as Reply } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { connect, refusal } from "./clients.ts";
import { nameOf, read } from "./reading.ts";
import { useService } from "./service.ts";

const service = useService();

/** A call that waits for a person, and two who could answer. */
async function openAsk(command = "echo asked") {
  const agent = connect(service, "caller");
  const sessionId = await agent.newSession();
  const stream = read(agent.tools.executeTool({ sessionId, callId: "c1", tool: "bash", input: { command } }));
  const ask = await stream.until("permissionAsked");
  const answerAs = (who: "approver" | "deputy") => (answer: { reply: Reply } & Record<string, unknown>) =>
    connect(service, who).permissions.respondToPermission({ sessionId, permissionId: ask.id, ...answer });
  return { sessionId, agent, stream, ask, approver: answerAs("approver"), deputy: answerAs("deputy") };
}

test("the second answer is refused and names the winner and its reply", async () => {
  const { stream, ask, approver, deputy } = await openAsk();
  await approver({ reply: Reply.REJECT, message: "Not now." });
  const refused = await refusal(deputy({ reply: Reply.ONCE }));
  expect(refused).toMatchObject({ code: Code.FailedPrecondition, reason: "ALREADY_ANSWERED" });
  expect(refused.metadata).toEqual({ permission_id: ask.id, by: "approver" });
  expect(refused.error.findDetails(PermissionSettledSchema)).toMatchObject([
    { permissionId: ask.id, outcome: PermissionOutcome.REJECT, by: "approver", message: "Not now." },
  ]);
  expect((await stream.end()).state.case).toBe("error");
});

test("the error of a rejected call quotes the beginning of a long command, which its agent knows", async () => {
  const { stream, approver } = await openAsk(`echo ${"x".repeat(100_000)}`);
  await approver({ reply: Reply.REJECT });
  const { state } = await stream.end();
  const error = state.case === "error" ? state.value.error : "";
  expect(error).toContain('The user rejected this call (bash "echo xxx');
  expect(error.length).toBeLessThan(1_000);
});

test("an answer that arrives more than ten seconds after the time of the service that it names is refused", async () => {
  const { stream, sessionId, ask } = await openAsk();
  const { permissions, tools } = connect(service, "approver");
  let time = 0;
  const onHeader = (headers: Headers) => {
    time = Number(headers.get("toolgate-time"));
  };
  await tools.getServerInfo({}, { onHeader });
  const answer = { sessionId, permissionId: ask.id, reply: Reply.ONCE };
  const send = (sent: unknown) => permissions.respondToPermission(answer, { headers: { "toolgate-time": `${sent}` } });
  const late = { code: Code.DeadlineExceeded, reason: "DEADLINE_PASSED" };
  expect(await refusal(send(time - 10_001))).toMatchObject(late);
  expect(await refusal(send("noon"))).toMatchObject(late);
  await send(time);
  expect((await stream.end()).state.case).toBe("completed");
});

test("a repeated answer succeeds and is recorded once", async () => {
  const { stream, approver } = await openAsk();
  await approver({ reply: Reply.ONCE, replyId: "r1" });
  await approver({ reply: Reply.ONCE, replyId: "r1" });
  await stream.end();
  await approver({ reply: Reply.ONCE, replyId: "r1" });
  expect(stream.seen.filter((event) => nameOf(event) === "permissionSettled")).toHaveLength(1);
});

test("without a reply_id a repeated answer succeeds from the same principal and is refused from another", async () => {
  const { approver, deputy } = await openAsk();
  await approver({ reply: Reply.ONCE });
  await approver({ reply: Reply.ONCE });
  expect(await refusal(deputy({ reply: Reply.ONCE }))).toMatchObject({ reason: "ALREADY_ANSWERED" });
  expect(await refusal(approver({ reply: Reply.REJECT }))).toMatchObject({ reason: "ALREADY_ANSWERED" });
});

test("a reply_id with another answer is refused", async () => {
  const { ask, approver } = await openAsk();
  await approver({ reply: Reply.ONCE, replyId: "r1" });
  expect(await refusal(approver({ reply: Reply.REJECT, replyId: "r1" }))).toMatchObject({
    code: Code.InvalidArgument,
    reason: "REPLY_ID_REUSED",
    metadata: { permission_id: ask.id, reply_id: "r1" },
  });
});

test("the same reply_id with another offer is another answer", async () => {
  const { ask, approver } = await openAsk();
  const [narrow, wide] = ask.offers.map(({ id }) => id);
  const always = { reply: Reply.ALWAYS, replyId: "r1" };
  await approver({ ...always, offerId: narrow });
  await approver({ ...always, offerId: narrow });
  expect(await refusal(approver({ ...always, offerId: wide }))).toMatchObject({ reason: "REPLY_ID_REUSED" });
  expect(await refusal(approver({ reply: Reply.ALWAYS, offerId: wide }))).toMatchObject({ reason: "ALREADY_ANSWERED" });
});

test("an answer with another digest than the shown one settles nothing", async () => {
  const { stream, ask, approver } = await openAsk();
  expect(await refusal(approver({ reply: Reply.ONCE, expectedDigest: "what I saw" }))).toMatchObject({
    code: Code.FailedPrecondition,
    reason: "ASK_CHANGED",
    metadata: { permission_id: ask.id, digest: ask.digest },
  });
  await approver({ reply: Reply.ONCE, expectedDigest: ask.digest });
  expect((await stream.end()).state.case).toBe("completed");
});

test("of twenty answers at once exactly one wins, and all others name it", async () => {
  const { stream, approver, deputy } = await openAsk();
  const answers = Array.from({ length: 20 }, (_, i) => {
    const reply = i % 4 < 2 ? Reply.ONCE : Reply.REJECT;
    return (i % 2 === 0 ? approver : deputy)({ reply, replyId: `r${i}` });
  });
  const results = await Promise.allSettled(answers);
  const { state } = await stream.end();
  const [winner, ...others] = stream.seen.flatMap(({ event }) =>
    event.case === "permissionSettled" ? [event.value] : [],
  );
  expect(others).toEqual([]);
  const won = results.flatMap(({ status }, i) => (status === "fulfilled" ? [`r${i}`] : []));
  expect(won).toEqual([winner?.replyId]);
  expect(state.case).toBe(winner?.outcome === PermissionOutcome.ONCE ? "completed" : "error");
  for (const lost of answers.filter((_, i) => `r${i}` !== won[0])) {
    const refused = await refusal(lost);
    expect(refused).toMatchObject({ code: Code.FailedPrecondition, reason: "ALREADY_ANSWERED" });
    expect(refused.error.findDetails(PermissionSettledSchema)).toEqual([winner]);
  }
});

test("always is refused where nothing can be saved, and the ask stays open", async () => {
  const { stream, ask, approver } = await openAsk("echo \u202eone");
  expect(ask).toMatchObject({ offers: [], always: [] });
  expect(await refusal(approver({ reply: Reply.ALWAYS }))).toMatchObject({
    code: Code.FailedPrecondition,
    reason: "NO_OFFER",
  });
  await approver({ reply: Reply.ONCE });
  expect((await stream.end()).state.case).toBe("completed");
});

test("a reply must be set, and only reject takes advice", async () => {
  const { approver } = await openAsk();
  expect(await refusal(approver({ reply: Reply.UNSPECIFIED }))).toMatchObject({
    code: Code.InvalidArgument,
    metadata: { field: "reply" },
  });
  expect(await refusal(approver({ reply: Reply.ONCE, message: "but be careful" }))).toMatchObject({
    code: Code.InvalidArgument,
    reason: "INVALID_MESSAGE",
  });
});

test("a permission request is answered only under its session", async () => {
  const { agent, ask } = await openAsk();
  const other = await agent.newSession();
  const person = connect(service, "approver");
  const wrong = { sessionId: other, permissionId: ask.id, reply: Reply.ONCE };
  expect(await refusal(person.permissions.respondToPermission(wrong))).toMatchObject({
    code: Code.NotFound,
    reason: "NO_SUCH_PERMISSION",
  });
});

test("a reject ends its own call and no other", async () => {
  const { sessionId, agent, stream, approver } = await openAsk();
  const other = read(
    agent.tools.executeTool({ sessionId, callId: "c2", tool: "bash", input: { command: "echo other" } }),
  );
  const { id } = await other.until("permissionAsked");
  await approver({ reply: Reply.REJECT });
  expect((await stream.end()).state.case).toBe("error");
  const { permissions } = await agent.permissions.listPermissions({ sessionId });
  expect(permissions.map(({ id }) => id)).toEqual([id]);
});
