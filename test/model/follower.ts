import type { SessionEvent } from "../../gen/opencode/tool/v1/event_pb.ts";
import type { FollowedEvent } from "../../src/call/log.ts";
import { ReplicaDied } from "./reach.ts";

/** A client's stream: what it got, and after which number it began. */
export interface Follower {
  readonly after: number;
  readonly events: readonly SessionEvent[];
  /** The last number it was told. */
  readonly lastSeq: number;
  /** Whether the stream has come to its end, or to something that a client would not survive: `done` tells which. */
  readonly isOver: boolean;
  /** Resolves at the end of the stream, or when it was stopped. */
  readonly done: Promise<void>;
}

/** Follows as a client does: when its replica dies it goes on after the last number, at another one. */
export function startFollower(
  after: number,
  open: (after: number) => AsyncIterable<FollowedEvent>,
  { signal, onEvent }: { signal: AbortSignal; onEvent: () => void },
): Follower {
  const events: SessionEvent[] = [];
  let lastSeq = after;
  async function run(): Promise<void> {
    for (;;) {
      try {
        for await (const followed of open(lastSeq)) {
          if (followed.event) events.push(followed.event);
          lastSeq = followed.lastSeq;
          onEvent();
        }
        return;
      } catch (cause) {
        if (signal.aborted) return;
        if (!(cause instanceof ReplicaDied)) throw cause;
        // There may be no replica at all just now.
        await new Promise((resolve) => setImmediate(resolve));
      }
    }
  }
  let isOver = false;
  const done = run().finally(() => {
    isOver = true;
    onEvent();
  });
  // Looked at when the run is over.
  done.catch(() => undefined);
  return {
    after,
    events,
    done,
    get isOver() {
      return isOver;
    },
    get lastSeq() {
      return lastSeq;
    },
  };
}
