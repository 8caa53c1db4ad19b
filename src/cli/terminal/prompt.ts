import { createInterface } from "node:readline/promises";
import { setTimeout as sleep } from "node:timers/promises";
import type { Question, Shown } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import { PermissionReply, type PermissionRequest } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { savableOffers } from "../../view/need.ts";
import { asksQuestions, questionLabel } from "../../view/questions.ts";
import { isRequestCut } from "../../view/view-lines.ts";
import type { Answering } from "../call/ask-prompt.ts";
import type { ServerConnection } from "../connection/connection.ts";
import type { ReplyAnswer } from "../connection/send-reply.ts";
import type { CliProcess } from "../context.ts";
import { isDumbTerminal } from "../environment.ts";
import { commandFailure } from "../failure/failure.ts";
import { parseAnswer } from "../question/parse-answer.ts";
import { askLines } from "../view/ask-view.ts";
import { readFileTexts, readWholeRequest, shownWith } from "../view/whole-request.ts";
import { editCall } from "./edit.ts";
import type { Paint, Screen } from "./screen.ts";
import { terminalLine } from "./terminal-safe.ts";
import { createPasteReader, inertMs, markPastes } from "./typing.ts";

/** Checks for a terminal to prompt a person at. */
export function hasTerminal({ stdin, stderr }: CliProcess): boolean {
  return stdin.isTTY === true && stderr.isTTY === true;
}

/** Prompts the person at this terminal for answers; text that was pasted, or typed before the request was shown, approves nothing. */
export function answeringAtTerminal(approver: ServerConnection, screen: Screen): (interrupt: () => void) => Answering {
  return (onInterrupt) => ({
    approver,
    async decide(ask, signal) {
      const prompt = { io: screen.io, paint: screen.paint.err, signal, onInterrupt };
      let isWhole = !isRequestCut(ask);
      let shown: Shown | undefined;
      await dropTyped(prompt);
      while (!signal.aborted) {
        const choice = await promptFor(ask, { ...prompt, isWhole });
        if (choice === "whole") {
          shown = await showWhole(approver, ask, screen);
          isWhole = shown !== undefined;
          await dropTyped(prompt);
          continue;
        }
        if (choice !== "edit") return choice && { ...choice, ...(shown && { shown }) };
        const input = await editCall(approver, ask, screen.io).catch((error) =>
          screen.fail(commandFailure(error, approver)),
        );
        if (input) return { reply: PermissionReply.ONCE, input };
      }
      return undefined;
    },
  });
}

/** Prints all of a request that holds only a part; returns what of it is shown then, undefined if it cannot be read. */
async function showWhole(
  approver: ServerConnection,
  ask: PermissionRequest,
  screen: Screen,
): Promise<Shown | undefined> {
  try {
    const whole = await readWholeRequest(approver, ask);
    const texts = await readFileTexts(approver, ask);
    for (const line of askLines(whole, screen.paint.err, { now: Date.now(), texts })) screen.alert(line);
    return shownWith(whole, texts);
  } catch (error) {
    screen.fail(commandFailure(error, approver));
    return undefined;
  }
}

interface Prompt {
  io: CliProcess;
  paint: Paint;
  /** Withdraws the prompt, such as after an answer from elsewhere. */
  signal: AbortSignal;
  /** Called on Ctrl-C, which is no signal in raw mode. */
  onInterrupt(): void;
}

/** Discards keys typed before the request, and until there is a pause: they cannot be meant as an answer. */
async function dropTyped({ io: { stdin }, signal, onInterrupt }: Prompt): Promise<void> {
  let readyAt = performance.now() + inertMs;
  const drop = (typed: Buffer) => {
    readyAt = performance.now() + inertMs;
    if (typed.includes(ctrlC)) onInterrupt();
  };
  stdin.setRawMode?.(true);
  stdin.on("data", drop).resume();
  try {
    for (let left = inertMs; left > 0 && !signal.aborted; left = readyAt - performance.now())
      await sleep(left, undefined, { signal }).catch(() => undefined);
  } finally {
    stdin.pause().off("data", drop);
    stdin.setRawMode?.(false);
  }
}

interface PromptedAsk extends Prompt {
  /** All of the request was on the screen. */
  isWhole: boolean;
}

/** An answer, or what to do before the next prompt. */
type Choice = ReplyAnswer | "edit" | "whole";

/** Prompts for an answer; undefined if the prompt was withdrawn or the person leaves the request open (Ctrl-D). */
async function promptFor(ask: PermissionRequest, prompt: PromptedAsk): Promise<Choice | undefined> {
  const { stdin, stderr, env } = prompt.io;
  const reader = createInterface({ input: stdin, output: stderr });
  const left = new AbortController();
  reader.once("close", () => left.abort());
  reader.on("SIGINT", () => {
    stderr.write("\n");
    prompt.onInterrupt();
  });
  const signal = AbortSignal.any([prompt.signal, left.signal]);
  const isPasted = createPasteReader();
  let hasPasted = false;
  const notePaste = (_: unknown, key: { name?: string }) => {
    hasPasted ||= isPasted(key);
  };
  async function question(text: string): Promise<Line> {
    hasPasted = false;
    const line = await reader.question(text, { signal });
    return { text: line.trim(), isTyped: !hasPasted };
  }
  stdin.on("keypress", notePaste);
  const canMark = !isDumbTerminal(env);
  if (canMark) stderr.write(markPastes.on);
  try {
    return asksQuestions(ask)
      ? await promptAnswers(ask, { ...prompt, read: question })
      : await readAnswer(ask, prompt, question);
  } catch (error) {
    if (!signal.aborted) throw error;
    stderr.write("\n");
    return undefined;
  } finally {
    if (canMark) stderr.write(markPastes.off);
    stdin.off("keypress", notePaste);
    reader.close();
  }
}

interface Line {
  text: string;
  /** No part of it was pasted. */
  isTyped: boolean;
}

type AskLine = (text: string) => Promise<Line>;

async function readAnswer(
  ask: PermissionRequest,
  { paint, io, isWhole }: PromptedAsk,
  question: AskLine,
): Promise<Choice> {
  const key = (letter: string, word: string) => `${paint("bold", letter)} ${word}`;
  const always = savableOffers(ask).length > 0 ? [key("a", "always")] : [];
  const approve = isWhole ? [key("o", "once"), ...always] : [key("w", "whole request")];
  const keys = [...approve, key("r", "reject"), key("e", "edit")].join("   ");
  while (true) {
    const line = await question(`  ${keys}  ${paint("yellow", "›")} `);
    const [word = "", ...rest] = line.text.split(/\s+/);
    const choice = word.toLowerCase();
    if (["e", "edit"].includes(choice)) return "edit";
    if (!isWhole && ["w", "whole"].includes(choice)) return "whole";
    if (["r", "reject"].includes(choice))
      return reject(rest.join(" ") || (await question("  advice for the agent (may be empty) › ")).text);
    if (!isWhole && approvals.has(choice)) {
      io.stderr.write("  only a part of it is shown: read the whole of it first, with w\n");
      continue;
    }
    const approval = await readApproval(ask, choice, rest[0], question);
    if (approval?.isTyped && line.isTyped) return approval.answer;
    if (approval) io.stderr.write("  pasted text approves nothing: type it\n");
  }
}

const approvals = new Set(["o", "once", "a", "always"]);

function reject(message: string): ReplyAnswer {
  return { reply: PermissionReply.REJECT, message };
}

async function readApproval(
  ask: PermissionRequest,
  choice: string,
  named: string | undefined,
  question: AskLine,
): Promise<{ answer: ReplyAnswer; isTyped: boolean } | undefined> {
  if (["o", "once"].includes(choice)) return { answer: { reply: PermissionReply.ONCE }, isTyped: true };
  const offers = savableOffers(ask);
  if (!["a", "always"].includes(choice) || offers.length === 0) return undefined;
  const asked = offers.length > 1 && named === undefined;
  const number = asked
    ? await question(`  which of 1 to ${offers.length}? (Enter: 1, the narrowest) › `)
    : { text: named ?? "", isTyped: true };
  const offer = offers[number.text === "" ? 0 : Number(number.text) - 1];
  if (!offer) return undefined;
  return { answer: { reply: PermissionReply.ALWAYS, offerId: offer.id }, isTyped: number.isTyped };
}

/** Help text of the commands that prompt. */
export const promptHelp = `
At a terminal it prompts you for a letter and Enter: o allows this call, a allows from now on, r rejects (text after it is
advice for the agent), e edits the arguments in $EDITOR. A request of which only a part is shown is approved after w has shown
all of it. Text typed before the prompt, or pasted, approves nothing. It prompts for the answer to each question of a call: a
number, a label or your own words; /dismiss refuses to answer.`;

const ctrlC = 0x03;

/** A terminal that reads lines; a line is typed if no part of it was pasted. */
interface AnswerPrompt {
  io: CliProcess;
  paint: Paint;
  read(prompt: string): Promise<{ text: string; isTyped: boolean }>;
}

/**
 * Prompts for an answer to each question of a request. Answers to several questions, and pasted ones, are sent after they were
 * shown and confirmed by a typed key.
 */
async function promptAnswers({ question: questions }: PermissionRequest, prompt: AnswerPrompt): Promise<ReplyAnswer> {
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
