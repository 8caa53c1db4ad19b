import { setTimeout as sleep } from "node:timers/promises";
import { Code, ConnectError } from "@connectrpc/connect";
import { ErrorInfoSchema } from "../../gen/google/rpc/error_details_pb.ts";

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

/** A stream that is opened again after its connection is lost. */
export interface ResumableStream<F extends Frame> {
  open(from: Position): AsyncIterable<F>;
  start: Position;
  /** Returns true for the last frame. */
  isLast(frame: F): boolean;
  /** Called before each retry with what cut the stream, and the pause until the retry. */
  onCut?(error: ConnectError, pauseMs: number): void;
  /** Ends the stream, also during a pause. */
  signal: AbortSignal;
  /** Returns the pause before a retry, counted from 0 since the last frame; undefined ends the retries. */
  pauseMs(attempt: number): number | undefined;
}

/** The service returned with another store, so the outcome of what was sent is not known. */
export class StoreChanged extends Error {
  override name = "StoreChanged";
}

/**
 * Yields a stream's frames across lost connections, each once, until the last one. Fails if the service was never reached, if
 * the retries end, if it refuses, or if it returns with another store.
 */
export async function* resumeStream<F extends Frame>(options: ResumableStream<F>): AsyncGenerator<F> {
  const { open, isLast, onCut, signal, pauseMs } = options;
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
      onCut?.(error, pause);
      await sleep(pause, undefined, { signal });
    }
  }
}

function advance(position: Position, { lastSeq, storeId }: Frame): void {
  if (storeId !== "" && position.storeId !== "" && storeId !== position.storeId) {
    throw new StoreChanged(
      `the server returned with another store (${storeId}, before ${position.storeId}): the session is not in it`,
    );
  }
  if (storeId !== "") position.storeId = storeId;
  if (lastSeq > position.afterSeq) position.afterSeq = lastSeq;
}

/** What the requests of a client have in common. */
export interface ClientLink {
  readonly url: string;
  /** True once the service has answered. */
  isReached: boolean;
  /** Ends the requests that wait. */
  readonly closed: AbortSignal;
}

/** Returns a signal of the client's end, and of the caller's. */
export function waitSignal({ closed }: ClientLink, signal: AbortSignal | undefined): AbortSignal {
  return signal === undefined ? closed : AbortSignal.any([closed, signal]);
}

/** Sends a request until it is answered. Fails if the service was never reached, or refuses. */
export async function untilAnswered<T>(link: ClientLink, signal: AbortSignal, send: () => Promise<T>): Promise<T> {
  for (let attempt = 0; ; attempt++) {
    try {
      const answer = await send();
      link.isReached = true;
      return answer;
    } catch (error) {
      signal.throwIfAborted();
      if (!(error instanceof ConnectError) || !isCut(error)) throw error;
      link.isReached ||= error.findDetails(ErrorInfoSchema).length > 0;
      if (!link.isReached && attempt === 0 && isUnreachable(error)) throw error;
      if (!link.isReached && attempt + 1 >= maxFirstAttempts) throw unreachedError(link.url, error);
      await sleep(backoffMs(attempt), undefined, { signal });
    }
  }
}

/** Gives the error of a service that was never reached its next step. */
export function unreachedError(url: string, cause: unknown): ConnectError {
  const { rawMessage } = ConnectError.from(cause);
  const message = `no service answers at ${url} (${rawMessage}): start one with \`toolgate serve\`, or name another in TOOLGATE_URL`;
  return new ConnectError(message, Code.Unavailable, undefined, undefined, cause);
}

/** Checks for a lost connection or a server that asks to retry; any other refusal is final. */
export function isCut(error: ConnectError): boolean {
  const [info] = error.findDetails(ErrorInfoSchema);
  if (info) return error.code === Code.Unavailable;
  // HTTP/2: the server did not process the request, for example because it is going away.
  return lostConnection.includes(error.code) || error.rawMessage.includes("NGHTTP2_REFUSED_STREAM");
}

/** Checks for a connection that was never made, so that nothing was sent. */
export function isUnreachable(error: unknown): boolean {
  if (!(error instanceof ConnectError) || error.code !== Code.Unavailable) return false;
  for (let cause: unknown = error.cause; cause instanceof Error; cause = cause.cause)
    if ("code" in cause && ["ECONNREFUSED", "ENOTFOUND", "EAI_AGAIN", "ENOENT"].includes(String(cause.code)))
      return true;
  return false;
}

/** Returns the pause before a retry, counted from 0: it doubles up to a maximum, and is random so that clients do not return at once. */
export function backoffMs(attempt: number, maxMs = 5_000): number {
  return Math.min(250 * 2 ** attempt, maxMs) * (0.5 + Math.random() / 2);
}

const maxFirstAttempts = 5;
const lostConnection: readonly Code[] = [Code.Unavailable, Code.Aborted, Code.Canceled];
