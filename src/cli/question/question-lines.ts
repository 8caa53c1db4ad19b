import type { Question } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import { answerHint, questionLabel } from "../../view/questions.ts";
import type { Paint } from "../terminal/screen.ts";
import { terminalLine, terminalSafe } from "../terminal/terminal-safe.ts";

/** One question as lines: its label and text, the numbered options, and how to answer. */
export function questionLines(question: Question, at: number, paint: Paint): string[] {
  const [first = "", ...more] = terminalSafe(question.question).split("\n");
  const options = question.options.map(({ label, description }, i) => {
    const about = description === "" ? "" : `  ${paint("dim", terminalLine(description))}`;
    return `    ${paint("bold", `${i + 1}`.padStart(2))} ${terminalLine(label)}${about}`;
  });
  return [
    `  ${paint("cyan", questionLabel(question, at, terminalLine))}  ${first}`,
    ...more.map((line) => `  ${line}`),
    ...options,
    `    ${paint("dim", answerHint(question))}`,
  ];
}
