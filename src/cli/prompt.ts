import { createInterface } from "node:readline/promises";
import { setTimeout as sleep } from "node:timers/promises";
import { PermissionReply, type PermissionRequest } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { Answering } from "./asking.ts";
import type { Connection } from "./connection.ts";
import type { Answer } from "./reply.ts";
import type { Paint, Screen } from "./screen.ts";

/** Whether a person can be asked at this process's terminal. */
export function hasTerminal(): boolean {
  return process.stdin.isTTY === true && process.stderr.isTTY === true;
}

/** Has asks answered by the person at this terminal. */
export function answeringAtTerminal(approver: Connection, screen: Screen): (interrupt: () => void) => Answering {
  return (interrupt) => ({
    approver,
    prepare: (signal) => dropTypedAhead(interrupt, signal),
    decide: (ask, signal) => promptFor(ask, { paint: screen.paint.err, signal, onInterrupt: interrupt }),
  });
}

interface Prompt {
  paint: Paint;
  /** Takes the question back, such as when somebody else answered. */
  signal: AbortSignal;
  /** Told of Ctrl-C, which is no signal while a prompt is read. */
  onInterrupt(): void;
}

/** Asks the person at the terminal; undefined if the question was taken back or the person leaves it open (Ctrl-D). */
async function promptFor(ask: PermissionRequest, prompt: Prompt): Promise<Answer | undefined> {
  const reader = createInterface({ input: process.stdin, output: process.stderr });
  const left = new AbortController();
  reader.once("close", () => left.abort());
  reader.on("SIGINT", () => {
    process.stderr.write("\n");
    prompt.onInterrupt();
  });
  const signal = AbortSignal.any([prompt.signal, left.signal]);
  try {
    return await readAnswer(ask, prompt.paint, (text) => reader.question(text, { signal }));
  } catch (error) {
    if (!signal.aborted) throw error;
    process.stderr.write("\n");
    return undefined;
  } finally {
    reader.close();
  }
}

/** Drops what was typed before there was anything to see: it cannot be meant as an answer. */
async function dropTypedAhead(onInterrupt: () => void, signal: AbortSignal): Promise<void> {
  const drop = (typed: Buffer) => {
    if (typed.includes(ctrlC)) onInterrupt();
  };
  process.stdin.setRawMode(true).on("data", drop).resume();
  try {
    await sleep(150, undefined, { signal }).catch(() => undefined);
  } finally {
    process.stdin.pause().off("data", drop).setRawMode(false);
  }
}

type Question = (text: string) => Promise<string>;

async function readAnswer(ask: PermissionRequest, paint: Paint, question: Question): Promise<Answer> {
  const key = (letter: string, word: string) => `${paint("bold", letter)} ${word}`;
  const keys = [key("o", "once"), ...(ask.offers.length > 0 ? [key("a", "always")] : []), key("r", "reject")];
  while (true) {
    const [word = "", ...rest] = (await question(`  ${keys.join("   ")}  ${paint("yellow", "›")} `))
      .trim()
      .split(/\s+/);
    const choice = word.toLowerCase();
    if (["o", "once"].includes(choice)) return { reply: PermissionReply.ONCE };
    if (["r", "reject"].includes(choice))
      return reject(rest.join(" ") || (await question("  what should it do instead? (may be empty) › ")));
    if (["a", "always"].includes(choice) && ask.offers.length > 0) {
      const offer = await chooseOffer(ask, rest[0], question);
      if (offer) return { reply: PermissionReply.ALWAYS, offerId: offer };
    }
  }
}

function reject(message: string): Answer {
  return { reply: PermissionReply.REJECT, message: message.trim() };
}

async function chooseOffer(
  { offers }: PermissionRequest,
  named: string | undefined,
  question: Question,
): Promise<string | undefined> {
  if (offers.length === 1) return offers[0]?.id;
  const number = named ?? (await question(`  which of 1 to ${offers.length}? (Enter: 1, the narrowest) › `)).trim();
  return offers[number === "" ? 0 : Number(number) - 1]?.id;
}

const ctrlC = 0x03;
