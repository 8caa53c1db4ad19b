import { setTimeout as sleep } from "node:timers/promises";
import { Code, ConnectError } from "@connectrpc/connect";
import { exitCodes } from "../exit-codes.ts";
import { CommandError, errorInfoOf } from "../failure/failure.ts";
import { terminalLine } from "../terminal/terminal-safe.ts";
import { durationOf } from "../view/words.ts";

/** What every stream of events sends. */
export interface Frame {
  lastSeq: bigint;
  storeId: string;
}

/** Where a stream stands: enough to open it again without loss and without repetition. */
export interface Position {
  /** The last number seen. */
  afterSeq: bigint;
  /** The store that the number is of; empty until it is known. */
  storeId: string;
}

/** A stream that can be opened again. */
export interface Resumable<F extends Frame> {
  open(from: Position): AsyncIterable<F>;
  start: Position;
  /** Whether nothing comes after this frame. */
  isLast(frame: F): boolean;
  /** Told in words before each new attempt. */
  onCut(words: string): void;
  /** Ends everything, also a pause. */
  signal: AbortSignal;
  /** How long to wait before an attempt, counted from 0 since the last frame; undefined gives up. */
  pauseMs?: (attempt: number) => number | undefined;
}

/**
 * Yields a stream's frames across lost connections, each once, until the last one. It gives up when the server was never
 * reached, stays away (unless told otherwise about a minute), refuses, or comes back with another store.
 */
export async function* resume<F extends Frame>(options: Resumable<F>): AsyncGenerator<F> {
  const { open, isLast, onCut, signal, pauseMs = aMinute } = options;
  const position = { ...options.start };
  let attempt = 0;
  while (true) {
    try {
      for await (const frame of open(position)) {
        attempt = 0;
        advance(position, frame);
        yield frame;
        if (isLast(frame)) return;
      }
      throw new ConnectError("the server ended the stream", Code.Unavailable);
    } catch (error) {
      signal.throwIfAborted();
      if (!(error instanceof ConnectError) || !isCut(error) || position.storeId === "") throw error;
      const pause = pauseMs(attempt);
      if (pause === undefined) throw error;
      attempt += 1;
      onCut(`connection lost (${terminalLine(error.rawMessage)}); trying again in ${durationOf(pause)}`);
      await sleep(pause, undefined, { signal });
    }
  }
}

/** The pauses of what a person leaves open: it never gives up. */
export function withoutEnd(attempt: number): number {
  return Math.min(250 * 2 ** attempt, 8_000);
}

function advance(position: Position, { lastSeq, storeId }: Frame): void {
  if (storeId !== "" && position.storeId !== "" && storeId !== position.storeId) {
    throw new CommandError(
      `the server came back with another store (${storeId}, before ${position.storeId}): what was known is gone`,
      "check what became of it before you start anew",
      exitCodes.lost,
    );
  }
  if (storeId !== "") position.storeId = storeId;
  if (lastSeq > position.afterSeq) position.afterSeq = lastSeq;
}

/** Whether the connection failed or the server asks to come again: an answer that has another reason is final. */
export function isCut(error: ConnectError): boolean {
  const told = errorInfoOf(error);
  if (told) return error.code === Code.Unavailable;
  return lostConnection.includes(error.code);
}

const lostConnection: readonly Code[] = [Code.Unavailable, Code.Aborted, Code.Canceled];
const aMinute = (attempt: number) => (attempt < 11 ? withoutEnd(attempt) : undefined);
