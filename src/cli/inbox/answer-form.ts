import type { PermissionRequest } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { asksQuestions } from "../../view/questions.ts";
import { type ParsedAnswer, parseAnswer } from "../question/parse-answer.ts";
import type { Key } from "../terminal/full-screen.ts";
import type { Card } from "./cards.ts";

/** The form of a card's questions, one after the other. */
export interface FormMode {
  readonly kind: "form";
  readonly card: Card;
  /** The request with the questions. */
  readonly ask: PermissionRequest;
  /** The question on the screen. */
  readonly at: number;
  /** Text typed for each question so far. */
  readonly typed: readonly string[];
}

/** The effect of a key in a form. */
type FormStep =
  | FormMode
  | { kind: "cards" }
  | { kind: "page"; by: number }
  | { kind: "problem"; problem: string }
  | { kind: "done"; answers: { values: string[] }[]; others: readonly PermissionRequest[] };

/** Opens the form of a card's questions; undefined if it asks none. */
export function beginForm(card: Card): FormMode | undefined {
  const ask = card.asks.find(asksQuestions);
  return ask && { kind: "form", card, ask, at: 0, typed: ask.question.map(() => "") };
}

/** The text of the question on the screen, and the answer that it stands for. */
export function currentAnswer({ ask, at, typed }: FormMode): { text: string; parsed: ParsedAnswer } {
  const [text = "", question] = [typed[at], ask.question[at]];
  return { text, parsed: question ? parseAnswer(question, text) : { values: [] } };
}

/** Applies a key: Enter goes to the next question and ends the form after the last one, Escape goes back. */
export function pressInForm(form: FormMode, key: Key): FormStep {
  const { ask, at, typed } = form;
  const { text, parsed } = currentAnswer(form);
  if (key.name === "pagedown") return { kind: "page", by: 1 };
  if (key.name === "pageup") return { kind: "page", by: -1 };
  if (key.name === "escape") return at === 0 ? { kind: "cards" } : { ...form, at: at - 1 };
  if (key.name !== "return" && key.name !== "enter") return { ...form, typed: typed.with(at, typeInto(text, key)) };
  if ("problem" in parsed) return { kind: "problem", problem: parsed.problem };
  return at + 1 < ask.question.length ? { ...form, at: at + 1 } : endForm(form);
}

function endForm({ ask, card, typed }: FormMode): FormStep {
  const parsed = ask.question.map((question, i) => parseAnswer(question, typed[i] ?? ""));
  const answers = parsed.map((answer) => ({ values: "values" in answer ? answer.values : [] }));
  if (answers.every(({ values }) => values.length === 0))
    return { kind: "problem", problem: "answer at least one question: Esc goes back, r on the card dismisses" };
  return { kind: "done", answers, others: card.asks.filter(({ id }) => id !== ask.id) };
}

/** The text of a field after a key. */
export function typeInto(text: string, key: Key): string {
  if (key.name === "backspace") return Array.from(text).slice(0, -1).join("");
  if (key.ctrl) return key.name === "u" ? "" : text;
  return text + key.text.replace(/\s/g, " ").replace(/\p{Cc}/gu, "");
}
