import { type Frame, type ResumableStream, resumeStream, StoreChanged } from "../../client/resume-stream.ts";
import { CommandError, exitCodes } from "../failure/command-error.ts";
import { terminalLine } from "../terminal/terminal-safe.ts";
import { durationOf } from "../view/words.ts";

export type { Position } from "../../client/resume-stream.ts";

/** A stream that can be resumed, and that reports at a terminal. */
export interface Resumable<F extends Frame> extends Omit<ResumableStream<F>, "onCut" | "pauseMs"> {
  /** Called with a message before each retry. */
  onCut(words: string): void;
  /** Default: retries end after about a minute. */
  pauseMs?: ResumableStream<F>["pauseMs"];
}

/** Yields a stream's frames across lost connections, each once, until the last one; see `resumeStream`. */
export async function* resume<F extends Frame>({ onCut, ...stream }: Resumable<F>): AsyncGenerator<F> {
  try {
    yield* resumeStream({
      pauseMs: aMinute,
      ...stream,
      onCut: ({ rawMessage }, pause) =>
        onCut(`connection lost (${terminalLine(rawMessage)}); trying again in ${durationOf(pause)}`),
    });
  } catch (error) {
    if (!(error instanceof StoreChanged)) throw error;
    throw new CommandError(error.message, "check the outcome of the call before you start again", exitCodes.lost);
  }
}

/** Pauses of a view that a person leaves open: retries have no limit. */
export function withoutEnd(attempt: number): number {
  return Math.min(250 * 2 ** attempt, 8_000);
}

const aMinute = (attempt: number) => (attempt < 11 ? withoutEnd(attempt) : undefined);
