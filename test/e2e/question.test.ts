import { randomUUID } from "node:crypto";
import type { JsonObject } from "@bufbuild/protobuf";
import { Code } from "@connectrpc/connect";
import { beforeAll, describe, expect, test } from "vitest";
import { PermissionAction as Action } from "../../gen/opencode/tool/v1/permission_pb.ts";
import {
  type PermissionRequest,
  PermissionReply as Reply,
  ToolErrorReason,
} from "../../gen/opencode/tool/v1/tool_pb.ts";
import { shareOf } from "../breadth.ts";
import { type RedisServers, startRedis } from "../store/redis-server.ts";
import { connect, refusal } from "./clients.ts";
import { type Reading, read } from "./reading.ts";
import { createService, type Service } from "./service.ts";

const settings = `
[agent.quiet.permission]
question = "deny"
[agent.part.permission]
question = { "*" = "deny", "May I*" = "ask" }
`;
const form = [
  {
    question: "Which database?",
    header: "Database",
    options: [{ label: "SQLite", description: "One file" }, { label: "Redis" }],
    custom: false,
  },
  { question: "Which ports?", header: "Ports", options: [{ label: "80" }, { label: "443" }], multiple: true },
  { question: "Anything else?", header: "" },
];
const answered = { reply: Reply.ONCE, answers: [{ values: ["Redis"] }, { values: ["80", "8080"] }, { values: [] }] };
const output =
  'User has answered your questions: "Which database?"="Redis", "Which ports?"="80, 8080", "Anything else?"="Unanswered". You can now continue with the user\'s answers in mind.';

describe.each(shareOf(["SQLite", "Redis"], ["SQLite"]))("on %s", (store) => {
  let service: Service;
  let top: string;
  beforeAll(async () => {
    const redis: RedisServers | undefined = store === "Redis" ? await startRedis() : undefined;
    top = `lease_ms = 2000\n${redis ? `store = "${redis.url}"\n` : ""}${settings}`;
    service = createService({ settings: top });
    await service.start();
    return async () => {
      await service.close();
      await redis?.stop();
    };
  });

  const agent = () => connect(service, "caller");
  const person = () => connect(service, "approver");

  interface Asked {
    sessionId: string;
    stream: Reading;
    ask: PermissionRequest;
    answer(response: object, who?: ReturnType<typeof person>): Promise<unknown>;
  }

  async function ask(input: JsonObject = { questions: form }, given?: string): Promise<Asked> {
    const sessionId = given ?? (await agent().newSession());
    const stream = read(agent().tools.executeTool({ sessionId, callId: randomUUID(), tool: "question", input }));
    const ask = await stream.until("permissionAsked");
    const answer: Asked["answer"] = (response, who = person()) =>
      who.permissions.respondToPermission({ sessionId, permissionId: ask.id, ...response });
    return { sessionId, stream, ask, answer };
  }

  test("a person answers a question although rules allow it, and the answers are the result", async () => {
    const { ask: asked, answer, stream, sessionId } = await ask();
    expect(asked).toMatchObject({
      permission: "question",
      patterns: ["Which database?", "Which ports?", "Anything else?"],
      offers: [],
      question: [
        {
          header: "Database",
          options: [
            { label: "SQLite", description: "One file" },
            { label: "Redis", description: "" },
          ],
          multiple: false,
          custom: false,
        },
        { header: "Ports", multiple: true, custom: true },
        { header: "", options: [], multiple: false, custom: true },
      ],
    });
    await answer(answered);
    expect(await stream.until("permissionSettled")).toMatchObject({ answers: answered.answers, by: "approver" });
    expect((await stream.end()).state).toMatchObject({
      case: "completed",
      value: { output, title: "Asked 3 questions", metadata: { answers: [["Redis"], ["80", "8080"], []] } },
    });
    const { entries } = await person().permissions.listDecisions({ sessionId });
    expect(entries.flatMap(({ record }) => record?.settled ?? [])).toMatchObject([{ answers: answered.answers }]);
  });

  test.each([
    ["without answers", { answers: undefined }, "answers", "3 questions, and 0 answers"],
    ["too few", { answers: [{ values: ["Redis"] }] }, "answers", "3 questions, and 1 answer came"],
    ["empty ones", { answers: [{}, {}, {}] }, "answers", "answer at least one"],
    [
      "free text where there is none",
      { answers: [{ values: ["MySQL"] }, {}, {}] },
      "answers[0]",
      'choose of "SQLite", "Redis"',
    ],
    ["two where one is taken", { answers: [{ values: ["Redis", "SQLite"] }, {}, {}] }, "answers[0]", "takes one"],
    ["one twice", { answers: [{}, { values: ["80", "80"] }, {}] }, "answers[1]", "twice"],
    ["two free texts", { answers: [{}, { values: ["1", "2"] }, {}] }, "answers[1]", "one may be free text"],
    ["blank text", { answers: [{}, {}, { values: [" "] }] }, "answers[2]", "blank"],
  ])("wrong answers (%s) are refused, and the question stays open", async (_, wrong, field, message) => {
    const { answer, stream, ask: asked } = await ask();
    const refused = await refusal(answer({ reply: Reply.ONCE, wholeCall: true, ...wrong }));
    expect(refused).toMatchObject({
      code: Code.InvalidArgument,
      reason: "INVALID_ANSWERS",
      metadata: { permission_id: asked.id, field },
    });
    expect(refused.error.rawMessage).toContain(message);
    await answer(answered);
    expect((await stream.end()).state.value).toMatchObject({ output });
  });

  test("neither an edit, nor always, nor its caller answers a question", async () => {
    const { answer, stream } = await ask();
    const input = { questions: [{ question: "Other?" }] };
    expect(await refusal(answer({ reply: Reply.ONCE, input }))).toMatchObject({ reason: "NOT_EDITABLE" });
    expect(await refusal(answer({ reply: Reply.ONCE, input: { questions: form } }))).toMatchObject({
      reason: "NOT_EDITABLE",
    });
    expect(await refusal(answer({ reply: Reply.ALWAYS }))).toMatchObject({ reason: "NO_OFFER" });
    for (const response of [
      { ...answered, reply: Reply.REJECT },
      { ...answered, input: { questions: form } },
    ])
      expect(await refusal(answer(response))).toMatchObject({ reason: "INVALID_MESSAGE" });
    expect(await refusal(answer(answered, agent()))).toMatchObject({ code: Code.PermissionDenied });
    await answer(answered);
    await stream.end();
  });

  test("the first of two answers counts, and the same one again is accepted", async () => {
    const { answer, stream } = await ask();
    await answer(answered);
    await answer(answered);
    const other = { ...answered, answers: [{ values: ["SQLite"] }, {}, {}] };
    expect(await refusal(answer(other))).toMatchObject({ reason: "ALREADY_ANSWERED", metadata: { by: "approver" } });
    expect(await refusal(answer(answered, connect(service, "deputy")))).toMatchObject({ reason: "ALREADY_ANSWERED" });
    expect((await stream.end()).state.value).toMatchObject({ output });
  });

  test.each([
    ["", "The user dismissed this question"],
    ["Look in the readme.", "The user dismissed this question. Their feedback: Look in the readme."],
  ])("a dismissal with the message %j ends the call REJECTED", async (message, error) => {
    const { answer, stream } = await ask();
    await answer({ reply: Reply.REJECT, message });
    expect((await stream.end()).state.value).toMatchObject({ reason: ToolErrorReason.REJECTED, error });
  });

  test("an answer to the other requests of its call or its tree leaves a question open", async () => {
    const repeated = { question: "Again?", options: ["Yes"] };
    const sessionId = await agent().newSession();
    for (const _ of [1, 2]) {
      const { answer, stream } = await ask(repeated, sessionId);
      await answer({ reply: Reply.ONCE, answers: [{ values: ["Yes"] }] });
      await stream.end();
    }
    const { stream, ask: first, answer } = await ask(repeated, sessionId);
    const second = await stream.until("permissionAsked");
    const [question, loop] = first.permission === "question" ? [first, second] : [second, first];
    expect([question.permission, loop.permission]).toEqual(["question", "doom_loop"]);
    await answer({ permissionId: loop.id, reply: Reply.ALWAYS, wholeCall: true });
    const { permissions } = await person().permissions.listPermissions({ sessionId });
    expect(permissions.map(({ id }) => id)).toEqual([question.id]);
    await answer({ permissionId: question.id, reply: Reply.ONCE, answers: [{ values: ["Yes"] }], wholeCall: true });
    expect((await stream.end()).state.value).toMatchObject({ metadata: { answers: [["Yes"]] } });
  });

  test("an agent that is denied the permission does not see the tool, and its call ends DENIED", async () => {
    const sessionId = await agent().newSession();
    const names = async (name: string) =>
      (await agent().tools.listTools({ sessionId, agent: name })).tools.map((tool) => tool.name);
    expect(await names("build")).toContain("question");
    expect(await names("quiet")).not.toContain("question");
    expect(await names("explore")).not.toContain("question");
    expect(await names("part")).toContain("question");
    const call = { sessionId, agent: "quiet", tool: "question", input: { question: "Go on?" } };
    const { part } = await agent().tools.callTool(call);
    expect(part?.state.value).toMatchObject({ reason: ToolErrorReason.DENIED });
  });

  test("plan and explain say that it asks, and the plan shows the form", async () => {
    const sessionId = await agent().newSession();
    const call = { sessionId, agent: "free", tool: "question", input: { question: "Go on?", options: ["Yes"] } };
    const plan = await agent().tools.planTool(call);
    expect(plan).toMatchObject({ action: Action.ASK, asks: [{ question: [{ options: [{ label: "Yes" }] }] }] });
    const about = { sessionId, agent: "free", permission: "question", patterns: ["Go on?"] };
    const explained = await agent().permissions.explainPermission(about);
    expect(explained.action).toBe(Action.ASK);
    expect(explained.decisions[0]?.reason).toContain("only a person can answer a question");
  });

  test("what a person would not see in a question is escaped, and the escaped label is the answer", async () => {
    const { ask: asked, answer, stream } = await ask({ question: "a\u202eb\nc", options: ["x\u200by", "p\nq"] });
    expect(asked.question).toMatchObject([
      { question: "a\\u{202e}b\nc", options: [{ label: "x\\u{200b}y" }, { label: "p q" }] },
    ]);
    expect(asked.warnings).toEqual([expect.stringContaining("U+202E")]);
    await answer({ reply: Reply.ONCE, answers: [{ values: ["x\\u{200b}y"] }] });
    expect((await stream.end()).state.value).toMatchObject({ metadata: { answers: [["x\\u{200b}y"]] } });
  });

  test("a question survives kill -9 and a change of the rules, and its answer counts", async () => {
    const { ask: asked, sessionId, stream } = await ask();
    const cut = expect(stream.end()).rejects.toThrow();
    await service.kill();
    await cut;
    await service.configure(`${top}[permission]\nwebfetch = "deny"\n`);
    await service.start();
    const { permissions } = await person().permissions.listPermissions({ sessionId });
    expect(permissions).toEqual([asked]);
    await person().permissions.respondToPermission({ sessionId, permissionId: asked.id, ...answered });
    const callId = asked.tool?.callId ?? "";
    // On Redis the rules of the killed service hold for 30 s, in which one with others starts no call.
    const call = { sessionId, callId, tool: "question", input: { questions: form }, waitMs: 60_000 };
    const { part } = await agent().tools.callTool(call);
    expect(part?.state.value).toMatchObject({ output });
  });
});
