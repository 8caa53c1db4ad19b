import type { SessionEvent } from "../../gen/opencode/tool/v1/event_pb.ts";
import type { ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { LedgerLine } from "./ledger.ts";

/** Requests and answers of clients, the final logs, and the actual runs. */
export interface History {
  calls: AcknowledgedCall[];
  answers: Answer[];
  watches: Watch[];
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
}

/** An answer to an ask under one reply id, sent any number of times. */
export interface Answer {
  sessionId: string;
  permissionId: string;
  replyId: string;
  /** `unknown`: without acknowledgement. */
  result: "won" | "lost" | "closed" | "unknown";
  /** For a lost answer: the reply id of the winner that it got. */
  winner?: string;
}

/** Events that a watcher saw of a session, or of one call, across its reconnects. */
export interface Watch {
  sessionId: string;
  callId?: string;
  events: SessionEvent[];
}

/** Creates an empty history. */
export function newHistory(): History {
  return { calls: [], answers: [], watches: [], logs: new Map(), ledger: [] };
}
