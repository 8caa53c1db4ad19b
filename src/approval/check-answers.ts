import type { Question, QuestionAnswer } from "../../gen/opencode/tool/v1/permission_pb.ts";
import {
  PermissionReply,
  type PermissionRequest,
  type PermissionResponse,
} from "../../gen/opencode/tool/v1/tool_pb.ts";
import { invalidAnswers, noOffer } from "./answer-refusals.ts";

/** Reports whether a permission request asks a person questions, so that only answers settle it. */
export function isQuestion({ question }: Pick<PermissionRequest, "question">): boolean {
  return question.length > 0;
}

/** Checks the answers of an approval: a request with questions needs those that fit, any other request none. */
export function checkAnswers(request: PermissionRequest, { reply, answers }: PermissionResponse): void {
  const { question: questions } = request;
  if (questions.length === 0) {
    if (answers.length === 0) return;
    throw invalidAnswers(request, "answers", "it asks no question; answer without `answers`");
  }
  if (reply !== PermissionReply.ONCE) throw noOffer(request, "questions and nothing to save");
  if (answers.length !== questions.length) {
    throw invalidAnswers(
      request,
      "answers",
      `it has ${count(questions.length, "question")}, and ${count(answers.length, "answer")} came; send one list of values for each question, an empty one for no answer`,
    );
  }
  if (answers.every(({ values }) => values.length === 0)) {
    throw invalidAnswers(request, "answers", "no answer has a value; answer at least one question, or reject");
  }
  questions.forEach((question, i) => {
    const problem = problemOf(question, answers[i]?.values ?? []);
    if (problem !== undefined)
      throw invalidAnswers(request, `answers[${i}]`, `the answer to question ${i + 1} ${problem}`);
  });
}

/** Describes why values do not answer a question; undefined if they do. */
function problemOf({ options, multiple, custom }: Question, values: QuestionAnswer["values"]): string | undefined {
  const labels = options.map(({ label }) => label);
  const listed = labels.map((label) => JSON.stringify(label)).join(", ");
  const free = values.filter((value) => !labels.includes(value));
  if (!multiple && values.length > 1) return `has ${values.length} values; it takes one`;
  if (new Set(values).size < values.length) return "has the same value twice";
  if (!custom && free[0] !== undefined) return `is ${JSON.stringify(free[0])}; choose of ${listed}`;
  if (free.length > 1)
    return `has ${free.length} values that are no option; one may be free text, the others are of ${listed}`;
  if (free.some((value) => value.trim() === "")) return "is blank; leave its list empty for no answer";
  return undefined;
}

const count = (n: number, what: string) => `${n} ${what}${n === 1 ? "" : "s"}`;
