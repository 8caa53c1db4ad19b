import type { CancellationTokenSource, MessageConnection, MessageReader } from "vscode-jsonrpc/node";
import type { LanguageServer } from "../../core/language-server.ts";
import { createLastWords } from "../../core/last-words.ts";
import { ToolFailure } from "../../tool/errors.ts";
import type { ServerProgram } from "./find-server.ts";

/** Requests in a row without an answer after which a server counts as hung. */
const maxUnanswered = 2;
const maxMessageBytes = 64 * 1024 * 1024;
/** Messages that a server may send by itself in ten seconds. */
const maxOwnMessages = 20_000;
const floodMs = 10_000;
const maxWords = 2_000;

/** Messages that a server sends by itself. */
export interface ServerMessages {
  /** Answers a request of the server; throws for a method that is not known. */
  onRequest(method: string, params: unknown): unknown;
  onNotification(method: string, params: unknown): void;
}

/** A connection to a started server. */
export interface LanguageConnection {
  /** Sends a request. Throws `ToolFailure` if it is not answered in time, and `ServerAnswer` for an error of the server. */
  request<Result>(method: string, params: unknown, signal?: AbortSignal, ms?: number): Promise<Result>;
  notify(method: string, params: unknown): void;
  readonly ended: Promise<ServerEnd>;
  /** Ends the server for a reason; `isExpected` if it is not the server's fault. */
  end(reason: string, isExpected?: boolean): void;
  /** Lets the server shut down; ends it if it does not. */
  close(): Promise<void>;
}

/** The end of a server. */
export interface ServerEnd {
  readonly reason: string;
  /** True if it was stopped, and did nothing wrong. */
  readonly isExpected: boolean;
}

/** An error with which a server answered a request. */
export class ServerAnswer extends Error {
  override name = "ServerAnswer";
  readonly code: number;
  constructor(code: number, message: string) {
    super(message);
    this.code = code;
  }
}

/** The failure of a request whose server ended. */
export class ServerEnded extends ToolFailure {
  readonly why: string;
  constructor(name: string, why: string) {
    super(`The language server ${name} stopped before it answered: ${why}. The next call starts it again.`, {
      hadNoEffects: true,
    });
    this.why = why;
  }
}

/** Connects to a started server. A server that floods its client, or stops answering, is ended. */
export async function openConnection(
  { name, timeoutMs }: Pick<LanguageServer, "name" | "timeoutMs">,
  program: ServerProgram,
  { onRequest, onNotification }: ServerMessages,
): Promise<LanguageConnection> {
  // Takes longer to load than most services need it.
  const rpc = await import("vscode-jsonrpc/node");
  const { promise: ended, resolve: setEnded } = Promise.withResolvers<ServerEnd>();
  const printed = createLastWords(maxWords);
  program.stderr.setEncoding("utf8").on("data", printed.add);
  program.stderr.on("error", () => undefined);
  let unanswered = 0;
  /** Ends the connection at once: nothing that the server sends counts any more. */
  const end = (reason: string, isExpected = false) => {
    const words = printed.text();
    setEnded({ isExpected, reason: words === "" ? reason : `${reason}; it printed last: ${words}` });
    connection.dispose();
    // What is still in the pipe is not read.
    program.stdout.destroy();
    void program.kill();
  };
  const guard = createFloodGuard(end);
  program.stdout.on("data", (chunk: Buffer) => guard.received(chunk.length));
  const reader = new rpc.StreamMessageReader(program.stdout);
  // Its timer for parts of a message would go on after the end of the server.
  reader.partialMessageTimeout = 0;
  const connection: MessageConnection = rpc.createMessageConnection(
    guardedReader(reader, guard.accepts),
    new rpc.StreamMessageWriter(program.stdin),
  );
  connection.onRequest(onRequest);
  connection.onNotification(onNotification);
  // A message that cannot be parsed: what follows cannot be read either.
  connection.onError(([error]) => end(`its messages cannot be read (${error.message})`));
  // One that closes its stdout and runs on cannot answer any more.
  connection.onClose(() => void setTimeout(() => end("it closed its stdout"), exitMs).unref());
  connection.listen();
  // It throws at once after the end.
  const notify = (method: string, params?: unknown) =>
    (async () => await connection.sendNotification(method, params))().catch(() => undefined);
  void program.exited.then((how) => end(`it ended (${how})`));

  async function request<Result>(
    method: string,
    params: unknown,
    signal?: AbortSignal,
    ms: number = timeoutMs,
  ): Promise<Result> {
    signal?.throwIfAborted();
    const source: CancellationTokenSource = new rpc.CancellationTokenSource();
    const { promise: interrupted, reject: stop } = Promise.withResolvers<never>();
    interrupted.catch(() => undefined);
    const onAbort = () => stop(signal?.reason);
    const timer = setTimeout(() => {
      unanswered += 1;
      if (unanswered >= maxUnanswered) end(`it did not answer ${unanswered} requests in a row`);
      stop(notAnswered(name, method, ms));
    }, ms);
    signal?.addEventListener("abort", onAbort, { once: true });
    const gone = ended.then(({ reason }) => Promise.reject(new ServerEnded(name, reason)));
    try {
      guard.sent();
      const answer = connection.sendRequest<Result>(method, params, source.token);
      // Without a handler, an answer after the end of the wait would be an unhandled rejection.
      answer.catch(() => undefined);
      const result = await Promise.race([answer, interrupted, gone]);
      unanswered = 0;
      return result;
    } catch (error) {
      if (error instanceof rpc.ConnectionError || isDisposed(error, rpc))
        throw new ServerEnded(name, (await ended).reason);
      if (error instanceof rpc.ResponseError) {
        unanswered = 0;
        throw new ServerAnswer(error.code, error.message);
      }
      throw error;
    } finally {
      clearTimeout(timer);
      signal?.removeEventListener("abort", onAbort);
      source.cancel();
      source.dispose();
      gone.catch(() => undefined);
    }
  }

  return {
    request,
    notify: (method, params) => void notify(method, params),
    ended,
    end,
    async close() {
      const isDown = await request("shutdown", null, undefined, shutdownMs).then(
        () => true,
        () => false,
      );
      if (isDown) await notify("exit");
      end("it was stopped", true);
      await program.kill();
    },
  };
}

const shutdownMs = 1_000;
/** Time in which a server ends by itself after it has closed its stdout. */
const exitMs = 500;

/** Tests for the error of a request that waited when its connection was closed. */
function isDisposed(error: unknown, { ResponseError, ErrorCodes }: typeof import("vscode-jsonrpc/node")): boolean {
  return error instanceof ResponseError && error.code === ErrorCodes.PendingResponseRejected;
}

/** Passes on the messages that are accepted as they arrive: the connection queues them without a limit. */
function guardedReader(reader: MessageReader, accepts: (isAnswer: boolean) => boolean): MessageReader {
  const { onError, onClose, onPartialMessage } = reader;
  return {
    ...{ onError, onClose, onPartialMessage },
    listen: (callback) =>
      reader.listen((message) => {
        if (accepts(!("method" in message))) callback(message);
      }),
    dispose: () => reader.dispose(),
  };
}

/** Ends a server that sends a message without end, or messages without end. */
function createFloodGuard(end: (reason: string) => void) {
  let pendingBytes = 0;
  /** Requests that have no answer yet. */
  let openCount = 0;
  let ownCount = 0;
  let since = performance.now();
  return {
    sent() {
      openCount += 1;
    },
    /** Counts bytes since the last message. */
    received(bytes: number) {
      pendingBytes += bytes;
      if (pendingBytes > maxMessageBytes) end(`it sent a message of more than ${maxMessageBytes} bytes`);
    },
    /** Counts a message, and reports whether it is handled. Answers to nothing count as messages that a server sends by itself. */
    accepts(isAnswer: boolean): boolean {
      pendingBytes = 0;
      if (isAnswer && openCount > 0) {
        openCount -= 1;
        return true;
      }
      const now = performance.now();
      if (now - since > floodMs) [since, ownCount] = [now, 0];
      ownCount += 1;
      if (ownCount === maxOwnMessages) end(`it sent ${ownCount} messages in less than ${floodMs / 1_000} s`);
      return ownCount < maxOwnMessages;
    },
  };
}

const notAnswered = (name: string, method: string, ms: number) =>
  new ToolFailure(
    `The language server ${name} did not answer ${method} within ${ms / 1_000} s. It may still be reading the project: try again later.`,
    { hadNoEffects: true },
  );
