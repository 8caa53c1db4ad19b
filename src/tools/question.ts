import * as z from "zod";
import type { QuestionAnswer } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { questionPermission } from "../core/ask.ts";
import { defineTool } from "../tool/define-tool.ts";

const maxQuestions = 10;
const maxOptions = 20;
/** Characters of all questions together: their escaped form has to fit an event. */
const maxFormLength = 32_768;

/** Accepts a label alone for an option. */
const option = z.preprocess(
  (value) => (typeof value === "string" ? { label: value } : value),
  z.object({
    label: z.string().trim().min(1).max(100).describe("The answer, 1 to 5 words"),
    description: z.string().trim().max(500).default("").describe("What choosing it means"),
  }),
);

const oneQuestion = z
  .object({
    question: z.string().trim().min(1).max(2_000).describe("The complete question"),
    header: z.string().trim().max(30).default("").describe("A very short label, at most 30 characters"),
    options: z.array(option).max(maxOptions).default([]).describe("Answers to choose from"),
    multiple: z.boolean().default(false).describe("Allow choosing several options"),
    custom: z.boolean().default(true).describe("Allow an answer in the person's own words"),
  })
  // White space is shown as one space.
  .refine(({ options }) => new Set(options.map(({ label }) => label.replaceAll(/\s+/g, " "))).size === options.length, {
    error: "two options have the same label; give each another one",
    path: ["options"],
  })
  .refine(({ options, custom }) => custom || options.length > 0, {
    error: "without options and without custom there is no answer to it",
    path: ["options"],
  });

/** Schema of the questions of one call; a single question may be given without a list. */
const questionForm = z.preprocess(
  readSingle,
  z.object({
    questions: z
      .array(oneQuestion)
      .min(1)
      .max(maxQuestions, `at most ${maxQuestions} questions; ask the others later`)
      .refine((questions) => JSON.stringify(questions).length <= maxFormLength, {
        error: `the questions have more than ${maxFormLength} characters together; shorten them`,
      })
      .describe("The questions to ask, answered together"),
  }),
);

/** Questions that fit the schema. */
type QuestionForm = z.output<typeof questionForm>["questions"];

/** Reads the form `{question, options?}`: one question, whose options may be labels. */
function readSingle(value: unknown, context: z.RefinementCtx): unknown {
  if (typeof value !== "object" || value === null || !("question" in value)) return value;
  if (!("questions" in value)) return { questions: [value] };
  context.addIssue({ code: "custom", message: "give questions or question, not both" });
  return value;
}

/** Asks a person. The engine opens the questions as a permission request and passes its answers to `execute`. */
export const question = defineTool({
  name: "question",
  version: "1",
  description: [
    "Ask the user while you work: for a preference, a decision, or what an instruction means. Put all questions of one topic",
    "into one call. Offer options where you can, the one that you recommend first; the user may answer in their own words",
    "unless custom is false. The user may dismiss the questions: then go on without an answer.",
  ].join(" "),
  input: questionForm,
  permissions: [questionPermission],
  readOnly: true,
  idempotent: true,
  plan: ({ questions }) => ({
    title: titleOf(questions),
    asks: [{ permission: questionPermission, patterns: [...new Set(questions.map(({ question: text }) => text))] }],
    questions,
  }),
  async execute({ questions }, { answers }) {
    const given = questions.map((_, i) => answers[i]?.values ?? []);
    const pairs = questions.map(({ question: text }, i) => `"${text}"="${wordsOf(given[i] ?? [])}"`).join(", ");
    return {
      title: `Asked ${questions.length} question${questions.length === 1 ? "" : "s"}`,
      output: `User has answered your questions: ${pairs}. You can now continue with the user's answers in mind.`,
      metadata: { answers: given },
    };
  },
});

const maxTitleLength = 80;

/** Returns the first line of the first question, and the number of the others. */
function titleOf([first, ...others]: QuestionForm): string {
  const [line = ""] = first?.question.split("\n") ?? [];
  const short = line.length > maxTitleLength ? `${line.slice(0, maxTitleLength)}…` : line;
  return others.length === 0 ? short : `${short} (+${others.length})`;
}

function wordsOf(values: QuestionAnswer["values"]): string {
  return values.length === 0 ? "Unanswered" : values.join(", ");
}
