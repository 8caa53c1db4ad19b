import { create, type MessageInitShape } from "@bufbuild/protobuf";
import {
  type WorkerHelloSchema,
  type WorkerWelcome,
  type WorkRequest,
  WorkRequestSchema,
  type WorkResponse,
} from "../../../gen/opencode/tool/v1/worker_pb.ts";
import type { ToolgateClient } from "../../client/connect.ts";
import type { SentMessage } from "./held-assignments.ts";

/** Callbacks of a worker for one connection. */
export interface ConnectionEvents {
  /** Called once, before any other message is read. `send` sends until the connection ends. */
  onWelcome(welcome: WorkerWelcome, send: (message: SentMessage) => void): void;
  /** Called for each later message but beats. Returning false stops reading: the next connection is opened. */
  onMessage(message: WorkResponse["message"]): boolean;
}

/** A connection on which nothing more is read. */
export interface UsedConnection {
  /** Reason of its end; undefined if it was left open, or if the service ended it. */
  readonly error: unknown;
  close(): void;
}

/** Time in which the service answers `hello`. */
const welcomeMs = 15_000;

/** Opens a connection and reads it until it ends, is silent for too long, or `onMessage` leaves it. Never throws. */
export async function useConnection(
  client: ToolgateClient,
  hello: MessageInitShape<typeof WorkerHelloSchema>,
  { onWelcome, onMessage }: ConnectionEvents,
): Promise<UsedConnection> {
  const outbox = createOutbox();
  const silence = createSilenceTimer(() => client.close());
  let beats: NodeJS.Timeout | undefined;
  const close = () => {
    silence.stop();
    clearInterval(beats);
    outbox.end();
    client.close();
  };
  outbox.send({ case: "hello", value: hello });
  silence.start(welcomeMs);
  try {
    for await (const { message } of client.workers.work(outbox.messages, { timeoutMs: 0 })) {
      silence.heard();
      if (message.case === "welcome") {
        const { beatMs, silenceMs } = message.value;
        silence.start(silenceMs);
        beats = setInterval(() => outbox.send({ case: "beat", value: {} }), beatMs / 2);
        onWelcome(message.value, outbox.send);
      } else if (message.case !== "beat" && !onMessage(message)) {
        silence.stop();
        return { error: undefined, close };
      }
    }
    close();
    return { error: undefined, close };
  } catch (error) {
    close();
    return { error: silence.isOver() ? new Error("the service was silent for too long") : error, close };
  }
}

/** Messages that wait to be sent on one connection. */
function createOutbox() {
  const waiting: WorkRequest[] = [];
  let wake = () => {};
  let isEnded = false;
  async function* drain(): AsyncGenerator<WorkRequest> {
    while (!isEnded) {
      for (let next = waiting.shift(); next; next = waiting.shift()) yield next;
      if (!isEnded) await new Promise<void>((resolve) => (wake = resolve));
    }
  }
  return {
    messages: drain(),
    send(message: SentMessage): void {
      if (isEnded) return;
      waiting.push(create(WorkRequestSchema, { message }));
      wake();
    },
    end(): void {
      isEnded = true;
      wake();
    },
  };
}

/** Measures how long nothing was heard. */
function createSilenceTimer(onSilence: () => void) {
  let timer: NodeJS.Timeout | undefined;
  let limitMs = 0;
  let heardAt = performance.now();
  let isOver = false;
  const check = () => {
    if (performance.now() - heardAt < limitMs) return;
    isOver = true;
    onSilence();
  };
  return {
    start(ms: number): void {
      clearInterval(timer);
      limitMs = ms;
      heardAt = performance.now();
      // A body that blocked the thread also delays what has arrived: it is read before the check.
      timer = setInterval(() => setImmediate(check), Math.max(ms / 8, 10));
    },
    heard(): void {
      heardAt = performance.now();
    },
    stop(): void {
      clearInterval(timer);
      limitMs = Number.POSITIVE_INFINITY;
    },
    isOver: () => isOver,
  };
}
