import { afterEach, beforeEach, expect, test } from "vitest";
import { callTool, openTestWorkspace, planCall, type TestWorkspace } from "../../src/testing.ts";
import { boundTool } from "../../src/tool/define-tool.ts";
import { InvalidInput } from "../../src/tool/errors.ts";
import { question } from "../../src/tools/question.ts";

let site: TestWorkspace;
beforeEach(async () => {
  site = await openTestWorkspace();
});
afterEach(() => site.remove());

const database = {
  question: "Which database?",
  header: "Database",
  options: [
    { label: "SQLite", description: "One file" },
    { label: "Redis", description: "" },
  ],
};

test("the answers are the result: several in one line, and Unanswered where there is none", async () => {
  const questions = [
    { ...database, multiple: true },
    { question: "Which port?", header: "Port", options: [] },
    { question: "Why?", header: "Why", options: [] },
  ];
  const answers = [["SQLite", "Redis"], [], ["I said so"]];
  expect(await callTool(site, question, { questions }, { answers })).toMatchObject({
    title: "Asked 3 questions",
    output:
      'User has answered your questions: "Which database?"="SQLite, Redis", "Which port?"="Unanswered", "Why?"="I said so". You can now continue with the user\'s answers in mind.',
    metadata: { answers },
  });
});

test("the plan asks with the questions as a form; free text is allowed unless custom is false", async () => {
  const { plan } = await planCall(site, question, {
    questions: [database, { question: "Sure?\nReally?", options: ["Yes"], custom: false }],
  });
  expect(plan).toMatchObject({
    title: "Which database? (+1)",
    asks: [{ permission: "question", patterns: ["Which database?", "Sure?\nReally?"] }],
    questions: [
      { ...database, multiple: false, custom: true },
      {
        question: "Sure?\nReally?",
        header: "",
        options: [{ label: "Yes", description: "" }],
        multiple: false,
        custom: false,
      },
    ],
  });
});

test("a single question with labels is one question of the list", async () => {
  const { plan } = await planCall(site, question, { question: "Go on?", options: ["Yes", "No"] });
  expect(plan.questions).toMatchObject([{ question: "Go on?", options: [{ label: "Yes" }, { label: "No" }] }]);
  expect((await planCall(site, question, { question: "Name?" })).plan.questions).toMatchObject([{ options: [] }]);
  expect(Object.keys(Object(boundTool(question).definition.inputSchema?.properties))).toEqual(["questions"]);
});

test.each([
  ["no question", { questions: [] }, "questions"],
  ["eleven questions", { questions: Array(11).fill(database) }, "at most 10 questions"],
  ["a header of 31 characters", { questions: [{ ...database, header: "x".repeat(31) }] }, "questions.0.header"],
  ["the same label twice", { question: "Go on?", options: ["Yes, all", "Yes,  all "] }, "the same label"],
  ["no way to answer", { questions: [{ question: "Go on?", custom: false }] }, "there is no answer to it"],
  ["a blank question", { question: " " }, "questions.0.question"],
  ["both forms", { question: "Go on?", questions: [database] }, "not both"],
  [
    "a form that is too long",
    {
      questions: Array(10).fill({
        question: "x".repeat(1_900),
        options: Array.from({ length: 20 }, (_, i) => ({ label: `${i}`, description: "x".repeat(100) })),
      }),
    },
    "shorten them",
  ],
])("%s is refused", async (_, input, message) => {
  const refused = planCall(site, question, input);
  await expect(refused).rejects.toThrow(InvalidInput);
  await expect(refused).rejects.toThrow(message);
});
