import type { Question } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import { answerHint, questionLabel } from "../../view/questions.ts";
import type { Paint } from "../terminal/screen.ts";
import { terminalLine, terminalSafe } from "../terminal/terminal-safe.ts";

/** Values for one question, or the reason why the text is no answer to it. */
export type ParsedAnswer = { values: string[] } | { problem: string };

/**
 * Reads an answer as a person types it: the number or the label of an option, several with commas where the question takes
 * several, otherwise free text. Empty text is no answer; text after `=` is free text, whatever it says.
 */
export function parseAnswer(question: Question, typed: string): ParsedAnswer {
  const { options, multiple, custom } = question;
  const text = typed.trim();
  if (text === "") return { values: [] };
  if (text.startsWith("=")) return freeText(question, [], text.slice(1).trim());
  const whole = optionOf(question, text);
  if (whole !== undefined) return { values: [whole] };
  if (!multiple || options.length === 0) return freeText(question, [], text);
  const pieces = text.split(",").flatMap((piece) => piece.trim() || []);
  const chosen = pieces.map((piece) => optionOf(question, piece));
  const values = [...new Set(chosen.filter((label) => label !== undefined))];
  if (values.length === 0) return freeText(question, [], text);
  const rest = pieces.filter((_, i) => chosen[i] === undefined).join(", ");
  return rest === "" || !custom
    ? rest === ""
      ? { values }
      : noOption(question, rest)
    : freeText(question, values, rest);
}

/** Returns the label of the option that a text names, by label or by number. */
function optionOf({ options }: Question, text: string): string | undefined {
  const same = ({ label }: { label: string }) => label.toLowerCase() === text.toLowerCase();
  const number = /^\d{1,2}$/.test(text) ? options[Number(text) - 1] : undefined;
  return (options.find(({ label }) => label === text) ?? options.find(same) ?? number)?.label;
}

function freeText(question: Question, chosen: readonly string[], text: string): ParsedAnswer {
  if (!question.custom) return noOption(question, text);
  return { values: text === "" ? [...chosen] : [...chosen, text] };
}

function noOption({ options }: Question, text: string): ParsedAnswer {
  const labels = options.map(({ label }, i) => `${i + 1} ${terminalLine(label)}`).join(", ");
  return { problem: `${terminalLine(JSON.stringify(text))} is none of ${labels}` };
}

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
