import { clone, create } from "@bufbuild/protobuf";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import { type SessionEvent, SessionEventSchema } from "../../gen/opencode/tool/v1/event_pb.ts";
import { RequestError } from "../core/request-error.ts";
import type { CallStore, OutputStore } from "./ports.ts";

/** The next event, or (without one) a sign that the log is quiet; `lastSeq` is where to resume. */
export interface FollowedEvent {
  event?: SessionEvent;
  lastSeq: number;
}

const pageBytes = 256 * 1024;
const heartbeatMs = 15_000;

/**
 * Reads a session's log after a number, then waits for more, until the signal is aborted (then it throws the reason).
 * Readers pull, so one that is slow costs one page and nobody else. With `callId` other events only advance `lastSeq`. Output
 * is named by place; `createFilling` adds its bytes.
 */
export async function* followLog(
  calls: CallStore,
  { sessionId, afterSeq, callId }: { sessionId: string; afterSeq: number; callId?: string | undefined },
  signal: AbortSignal,
): AsyncGenerator<FollowedEvent, never> {
  const bell = createBell();
  const off = calls.onNews(sessionId, bell.ring);
  // Who comes back to a quiet log hears at once that it is connected again, not at the first heartbeat.
  let isHeard = false;
  try {
    for (let lastSeq = afterSeq; ; ) {
      signal.throwIfAborted();
      const page = await calls.readLog(sessionId, lastSeq, pageBytes);
      if (lastSeq + 1 < page.firstSeq || lastSeq > page.lastSeq) throw trimmed(sessionId, lastSeq, page);
      for (const event of page.events) {
        lastSeq = Number(event.seq);
        if (callId !== undefined && callOf(event) !== callId) continue;
        yield { event, lastSeq };
        isHeard = true;
      }
      if (lastSeq < page.lastSeq) continue;
      if (!isHeard) yield { lastSeq };
      isHeard = true;
      if ((await bell.wait(heartbeatMs, signal)) === "quiet") yield { lastSeq };
    }
  } finally {
    off();
  }
}

/** The call of this session that an event is about; undefined for those of child sessions and for grants. */
export function callOf({ sessionId, event }: SessionEvent): string | undefined {
  switch (event.case) {
    case "part":
    case "progress":
    case "output":
      return event.value.callId;
    case "permissionAsked":
      return event.value.sessionId === sessionId ? event.value.tool?.callId : undefined;
    case "permissionSettled":
      return event.value.sessionId === sessionId ? event.value.callId : undefined;
    default:
      return undefined;
  }
}

/**
 * Makes what gives events of output their bytes, which live once, in the output store. However many read the same event
 * together, its bytes are read once and they share what comes of it.
 */
export function createFilling(outputs: Pick<OutputStore, "read">) {
  // Those that are being read: what was read is kept by nobody but who was given it.
  const filling = new Map<SessionEvent, Promise<SessionEvent>>();

  async function fill(event: SessionEvent, root: string): Promise<SessionEvent> {
    const copy = clone(SessionEventSchema, event);
    if (copy.event.case !== "output") return copy;
    const { output, offset, length } = copy.event.value;
    const read = await outputs.read(root, output.slice(output.indexOf(":") + 1), Number(offset), length);
    if (read) copy.event.value.data = new Uint8Array(read.data);
    return copy;
  }

  function share(event: SessionEvent, root: string): Promise<SessionEvent> {
    const work = fill(event, root).finally(() => filling.delete(event));
    filling.set(event, work);
    return work;
  }

  return {
    /** Passes on what is followed in a session of this tree, output with its bytes. */
    async *from(followed: AsyncIterable<FollowedEvent>, root: string): AsyncGenerator<FollowedEvent> {
      for await (const { event, lastSeq } of followed) {
        if (event?.event.case !== "output") {
          yield event ? { event, lastSeq } : { lastSeq };
          continue;
        }
        yield { event: await (filling.get(event) ?? share(event, root)), lastSeq };
      }
    },
  };
}

/** Remembers that it was rung until somebody waits. */
export function createBell() {
  let rung = false;
  let wake: (() => void) | undefined;
  return {
    ring(): void {
      rung = true;
      wake?.();
    },
    /** Resolves at the next ring ("news"), at once if it rang since the last wait, or after a while ("quiet"). */
    async wait(ms: number, signal: AbortSignal): Promise<"news" | "quiet"> {
      if (!rung && !signal.aborted) {
        await new Promise<void>((resolve) => {
          const timer = setTimeout(done, ms);
          signal.addEventListener("abort", done, { once: true });
          wake = done;
          function done(): void {
            clearTimeout(timer);
            signal.removeEventListener("abort", done);
            wake = undefined;
            resolve();
          }
        });
      }
      signal.throwIfAborted();
      const result = rung ? "news" : "quiet";
      rung = false;
      return result;
    },
  };
}

function trimmed(sessionId: string, afterSeq: number, { firstSeq, lastSeq }: { firstSeq: number; lastSeq: number }) {
  return new RequestError(
    ErrorReason.HISTORY_TRIMMED,
    `the log of session ${sessionId} has numbers ${firstSeq} to ${lastSeq}, nothing to go on from after ${afterSeq}; watch with snapshot, or after ${Math.max(0, firstSeq - 1)}`,
    { first_seq: String(firstSeq), last_seq: String(lastSeq) },
  );
}

/** A made event of a snapshot: true at that number, not part of the log. */
export function madeEvent(sessionId: string, seq: number, time: number, event: SessionEvent["event"]): SessionEvent {
  return create(SessionEventSchema, { seq: BigInt(seq), time, sessionId, event });
}
