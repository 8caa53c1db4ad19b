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
