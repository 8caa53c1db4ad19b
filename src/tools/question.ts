import type { QuestionAnswer } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { questionPermission } from "../core/ask.ts";
import { defineTool } from "../tool/define-tool.ts";
import { type QuestionForm, questionForm } from "./question/question-form.ts";

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
