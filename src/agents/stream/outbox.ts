import type { RunAgentsResponse } from "../../../gen/opencode/tool/v1/agent_service_pb.ts";

/** A message to a runner. */
export type RunnerMessage = Exclude<RunAgentsResponse["message"], { case: undefined }>;

/** Messages to one stream of a runner until it reads them. */
export interface Outbox {
  send(message: RunnerMessage): void;
  /** Resolves when fewer than `maxWaiting` messages wait: a runner that does not read must not be read from either. */
  drained(maxWaiting: number): Promise<void>;
  /** Ends the stream, with an error if there is one; what waits is dropped. */
  end(error?: Error): void;
  messages(): AsyncGenerator<RunnerMessage>;
}

/** Creates an empty outbox. */
export function createOutbox(): Outbox {
  const waiting: RunnerMessage[] = [];
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
