import { setTimeout as sleep } from "node:timers/promises";
import { Code, ConnectError } from "@connectrpc/connect";
import { exitCodes } from "../exit-codes.ts";
import { CommandError, errorInfoOf } from "../failure/failure.ts";
import { terminalLine } from "../terminal/terminal-safe.ts";
import { durationOf } from "../view/words.ts";

/** The fields that every stream of events has. */
export interface Frame {
  lastSeq: bigint;
  storeId: string;
}

/** Position in a stream, from which it is resumed without loss or repetition. */
export interface Position {
  /** The last sequence number seen. */
  afterSeq: bigint;
  /** The store of that number; empty until it is known. */
  storeId: string;
}

/** A stream that can be resumed. */
export interface Resumable<F extends Frame> {
  open(from: Position): AsyncIterable<F>;
  start: Position;
  /** Returns true for the last frame. */
  isLast(frame: F): boolean;
  /** Called with a message before each retry. */
  onCut(words: string): void;
  /** Ends the stream, also during a pause. */
  signal: AbortSignal;
  /** Returns the pause before a retry, counted from 0 since the last frame; undefined ends the retries. */
  pauseMs?: (attempt: number) => number | undefined;
}

/**
 * Yields a stream's frames across lost connections, each once, until the last one. Fails if the server was never reached,
 * stays unreachable (by default for about a minute), refuses, or returns with another store.
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

/** Pauses of a view that a person leaves open: retries have no limit. */
export function withoutEnd(attempt: number): number {
  return Math.min(250 * 2 ** attempt, 8_000);
}

function advance(position: Position, { lastSeq, storeId }: Frame): void {
  if (storeId !== "" && position.storeId !== "" && storeId !== position.storeId) {
    throw new CommandError(
      `the server returned with another store (${storeId}, before ${position.storeId}): the session is not in it`,
      "check the outcome of the call before you start again",
      exitCodes.lost,
    );
  }
  if (storeId !== "") position.storeId = storeId;
  if (lastSeq > position.afterSeq) position.afterSeq = lastSeq;
}

/** Checks for a lost connection or a server that asks to retry; any other refusal is final. */
export function isCut(error: ConnectError): boolean {
  const info = errorInfoOf(error);
  if (info) return error.code === Code.Unavailable;
  return lostConnection.includes(error.code);
}

const lostConnection: readonly Code[] = [Code.Unavailable, Code.Aborted, Code.Canceled];
const aMinute = (attempt: number) => (attempt < 11 ? withoutEnd(attempt) : undefined);
