import * as z from "zod";

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

const question = z
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
export const questionForm = z.preprocess(
  readSingle,
  z.object({
    questions: z
      .array(question)
      .min(1)
      .max(maxQuestions, `at most ${maxQuestions} questions; ask the others later`)
      .refine((questions) => JSON.stringify(questions).length <= maxFormLength, {
        error: `the questions have more than ${maxFormLength} characters together; shorten them`,
      })
      .describe("The questions to ask, answered together"),
  }),
);

/** Questions that fit the schema. */
export type QuestionForm = z.output<typeof questionForm>["questions"];

/** Reads the form `{question, options?}`: one question, whose options may be labels. */
function readSingle(value: unknown, context: z.RefinementCtx): unknown {
  if (typeof value !== "object" || value === null || !("question" in value)) return value;
  if (!("questions" in value)) return { questions: [value] };
  context.addIssue({ code: "custom", message: "give questions or question, not both" });
  return value;
}
