import type { Question } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import { PermissionReply, type PermissionRequest } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { questionLabel } from "../../view/questions.ts";
import type { ReplyAnswer } from "../connection/send-reply.ts";
import type { CliProcess } from "../context.ts";
import type { Paint } from "../terminal/screen.ts";
import { terminalLine } from "../terminal/terminal-safe.ts";
import { parseAnswer } from "./parse-answer.ts";

/** A terminal that reads lines; a line is typed if no part of it was pasted. */
export interface AnswerPrompt {
  io: CliProcess;
  paint: Paint;
  read(prompt: string): Promise<{ text: string; isTyped: boolean }>;
}

/**
 * Prompts for an answer to each question of a request. Answers to several questions, and pasted ones, are sent after they were
 * shown and confirmed by a typed key.
 */
export async function promptAnswers(
  { question: questions }: PermissionRequest,
  prompt: AnswerPrompt,
): Promise<ReplyAnswer> {
  say(prompt, "a number, a label or your own words; Enter: no answer; /dismiss and why: refuse to answer");
  for (;;) {
    const answers: Given[] = [];
    for (const [at, question] of questions.entries()) {
      const given = await promptAnswer(question, at, prompt);
      if (typeof given === "string") return { reply: PermissionReply.REJECT, message: given };
      answers.push(given);
    }
    const isPlain = answers.length === 1 && answers.every(({ isTyped }) => isTyped);
    if (answers.every(({ values }) => values.length === 0)) say(prompt, "answer at least one question, or /dismiss");
    else if (isPlain || (await isConfirmed(answers, prompt)))
      return { reply: PermissionReply.ONCE, answers: answers.map(({ values }) => ({ values })) };
  }
}

/** An answer to one question. */
interface Given {
  values: string[];
  isTyped: boolean;
}

/** Reads lines until one is an answer; returns the feedback if the person dismisses the questions. */
async function promptAnswer(question: Question, at: number, prompt: AnswerPrompt): Promise<Given | string> {
  for (;;) {
    const line = await prompt.read(`  ${questionLabel(question, at, terminalLine)} ${prompt.paint("yellow", "›")} `);
    const [command, feedback = ""] = /^\/dismiss(?:\s+(.*))?$/.exec(line.text) ?? [];
    if (command !== undefined) return feedback;
    const parsed = parseAnswer(question, line.text);
    if ("values" in parsed) return { ...parsed, isTyped: line.isTyped };
    say(prompt, parsed.problem);
  }
}

async function isConfirmed(answers: readonly Given[], { paint, read }: AnswerPrompt): Promise<boolean> {
  const words = answers.map(({ values }) => (values.length === 0 ? "no answer" : values.map(terminalLine).join(", ")));
  for (;;) {
    const { text, isTyped } = await read(`  send: ${words.join("; ")}?  y or n ${paint("yellow", "›")} `);
    if (isTyped && /^y(es)?$/i.test(text)) return true;
    if (/^n(o)?$/i.test(text)) return false;
  }
}

function say({ io, paint }: AnswerPrompt, text: string): void {
  io.stderr.write(`  ${paint("dim", text)}\n`);
}
