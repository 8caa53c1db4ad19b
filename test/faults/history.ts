import type { SessionEvent } from "../../gen/opencode/tool/v1/event_pb.ts";
import type { ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { LedgerLine } from "./ledger.ts";

/** Requests and answers of clients, the final logs, and the actual runs. */
export interface History {
  calls: AcknowledgedCall[];
  answers: Answer[];
  watches: Watch[];
  /** Lengths of logs that readers saw, and when. */
  reads: LogRead[];
  /** The whole log of each session, read at the end. */
  logs: Map<string, readonly SessionEvent[]>;
  ledger: LedgerLine[];
}

/** A call as its caller knows it. */
export interface AcknowledgedCall {
  sessionId: string;
  callId: string;
  /** True if an approver must allow it. */
  asks: boolean;
  /** Every snapshot in an acknowledgement. */
  parts: ToolPart[];
  /** Times of its request and of the response with its end. */
  ended?: { from: number; to: number };
}

/** An answer to an ask under one reply id, sent any number of times. */
export interface Answer {
  sessionId: string;
  permissionId: string;
  replyId: string;
  /** Time of the request, and of its response: infinite without one. */
  from: number;
  to: number;
  /** `unknown`: without acknowledgement. */
  result: "won" | "lost" | "closed" | "unknown";
  /** For a lost answer: the reply id of the winner that it got. */
  winner?: string;
}

/** A reader got an event of this number, or a whole log that ended with it. */
export interface LogRead {
  sessionId: string;
  from: number;
  to: number;
  last: number;
  isWhole: boolean;
}

/** Events that a watcher saw of a session, or of one call, across its reconnects. */
export interface Watch {
  sessionId: string;
  callId?: string;
  events: SessionEvent[];
}

/** Creates an empty history. */
export function newHistory(): History {
  return { calls: [], answers: [], watches: [], reads: [], logs: new Map(), ledger: [] };
}
