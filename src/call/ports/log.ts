import type { SessionEvent, ToolOutput, ToolProgress } from "../../../gen/opencode/tool/v1/event_pb.ts";
import type { ToolPart } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import type { Fence } from "./record.ts";

/** Event logs of the sessions, each with its own sequence numbers from 1 on. */
export interface EventLog {
  /** record_events: appends progress and output of a running call. Returns false if the fence does not hold. */
  recordEvents(fence: Fence, events: readonly (ToolProgress | ToolOutput)[]): Promise<boolean>;
  /** Reads the events after a sequence number, in order, up to about `maxBytes`. */
  readLog(sessionId: string, afterSeq: number, maxBytes: number): Promise<LogPage>;
  /**
   * Subscribes to news of a session, or of all sessions; the listener gets the session id and the first new sequence number.
   * It may be called more often than there are news, never less. Returns the function that unsubscribes.
   */
  onNews(sessionId: string | undefined, listener: (sessionId: string, seq: number) => void): () => void;
}

/** A page of a log. */
export interface LogPage {
  events: SessionEvent[];
  /** The first sequence number still stored, and the last one assigned (0 in an empty log). */
  firstSeq: number;
  lastSeq: number;
}

/** Encoded forms that the store has in memory, so that the edge need not encode a message again. */
export interface EncodedMessages {
  /** Returns the binary form of an event, or of a call's part, that this store returned; undefined if it has none. */
  bytesOf(message: SessionEvent | ToolPart): Uint8Array | undefined;
}
