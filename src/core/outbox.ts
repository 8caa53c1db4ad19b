/** Messages to one stream of a client until it reads them. */
export interface Outbox<Message> {
  send(message: Message): void;
  /** Resolves when fewer than `maxWaiting` messages wait: a client that does not read must not be read from either. */
  drained(maxWaiting: number): Promise<void>;
  readonly hasEnded: boolean;
  /** Ends the stream, with an error if there is one; what waits is dropped. */
  end(error?: Error): void;
  messages(): AsyncGenerator<Message>;
}

/** Creates an empty outbox. */
export function createOutbox<Message>(): Outbox<Message> {
  const waiting: Message[] = [];
  let ended: { error: Error | undefined } | undefined;
  let wakeReader = () => {};
  let wakeWriters = () => {};
  return {
    send(message) {
      if (ended) return;
      waiting.push(message);
      wakeReader();
    },
    async drained(maxWaiting) {
      while (!ended && waiting.length >= maxWaiting) {
        await new Promise<void>((resolve) => {
          wakeWriters = resolve;
        });
      }
    },
    get hasEnded() {
      return ended !== undefined;
    },
    end(error) {
      ended ??= { error };
      waiting.length = 0;
      wakeReader();
      wakeWriters();
    },
    async *messages() {
      for (;;) {
        for (let next = waiting.shift(); next !== undefined; next = waiting.shift()) {
          wakeWriters();
          yield next;
        }
        if (ended?.error) throw ended.error;
        if (ended) return;
        await new Promise<void>((resolve) => {
          wakeReader = resolve;
        });
      }
    },
  };
}

/** A bidirectional stream on which both sides send at least a beat in each interval. */
interface BeatingStream<Request, Message> {
  requests: AsyncIterable<Request>;
  /** Ends the stream with its reason. */
  signal: AbortSignal;
  beat: Message;
  beatMs: number;
  /** Messages that may wait for the client until its own are no longer read. */
  maxWaiting: number;
  /** Takes the first message. Returns the function that takes all others. */
  greet(request: Request, outbox: Outbox<Message>): Promise<(request: Request) => void>;
  /** Builds the error of a client that sent nothing for so long. */
  silent(ms: number): Error;
  /** Called once, when the stream has ended. */
  ended(outbox: Outbox<Message>): void;
}

/** Time in which the first message must arrive. */
const helloMs = 10_000;

/** Returns the time without a message after which a stream counts as dead. */
export function silenceOf(beatMs: number): number {
  return 3 * beatMs;
}

/** Serves one stream: yields the messages to the client until it leaves or is silent, its outbox ends, or the signal is aborted. */
export async function* serveBeatingStream<Request, Message>(
  stream: BeatingStream<Request, Message>,
): AsyncGenerator<Message> {
  const { signal, silent } = stream;
  const outbox = createOutbox<Message>();
  const silenceMs = silenceOf(stream.beatMs);
  let watchdog = setTimeout(() => outbox.end(silent(helloMs)), helloMs);
  let take: ((request: Request) => void) | undefined;
  // The answer to the first message is the first one that the client gets.
  const beat = setInterval(() => take && outbox.send(stream.beat), stream.beatMs);
  const abort = () => outbox.end(signal.reason instanceof Error ? signal.reason : undefined);
  signal.addEventListener("abort", abort, { once: true });
  if (signal.aborted) abort();

  async function read(): Promise<void> {
    for await (const request of stream.requests) {
      // Otherwise a late message would set the watchdog again, which delays the end of the process.
      if (outbox.hasEnded) return;
      clearTimeout(watchdog);
      watchdog = setTimeout(() => outbox.end(silent(silenceMs)), silenceMs);
      if (take === undefined) take = await stream.greet(request, outbox);
      else take(request);
      await outbox.drained(stream.maxWaiting);
    }
  }

  read().then(
    () => outbox.end(),
    (error: unknown) => outbox.end(error instanceof Error ? error : new Error(String(error))),
  );
  try {
    yield* outbox.messages();
  } finally {
    clearTimeout(watchdog);
    clearInterval(beat);
    signal.removeEventListener("abort", abort);
    outbox.end();
    stream.ended(outbox);
  }
}
