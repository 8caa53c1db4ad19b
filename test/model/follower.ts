import type { SessionEvent } from "../../gen/opencode/tool/v1/event_pb.ts";
import type { FollowedEvent } from "../../src/call/log.ts";
import { ReplicaDied } from "./reach.ts";

/** A client's stream: the events received after a sequence number. */
export interface Follower {
  readonly after: number;
  readonly events: readonly SessionEvent[];
  /** The last sequence number received. */
  readonly lastSeq: number;
  /** True after the end of the stream, or after a failure that `done` rejects with. */
  readonly isOver: boolean;
  /** Resolves at the end of the stream, or when it was stopped. */
  readonly done: Promise<void>;
}

/** Follows as a client does: when its replica dies it resumes at another one, after the last number. */
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
        // At this moment no replica may be alive.
        await new Promise((resolve) => setImmediate(resolve));
      }
    }
  }
  let isOver = false;
  const done = run().finally(() => {
    isOver = true;
    onEvent();
  });
  // Awaited when the run is over.
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
