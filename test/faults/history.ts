import type { SessionEvent } from "../../gen/opencode/tool/v1/event_pb.ts";
import type { ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { LedgerLine } from "./ledger.ts";

/** Requests and responses of clients, the logs at the end, and the ledger of what ran. */
export interface History {
  calls: ReportedCall[];
  answers: Answer[];
  watches: Watch[];
  /** The whole log of each session, read when all was over. */
  logs: Map<string, readonly SessionEvent[]>;
  ledger: LedgerLine[];
}

/** A call, as its caller knows it. */
export interface ReportedCall {
  sessionId: string;
  callId: string;
  /** True if an approver has to allow it. */
  asks: boolean;
  /** Every snapshot that an acknowledgement held. */
  parts: ToolPart[];
}

/** An answer to an ask, under one reply id, however often it was sent. */
export interface Answer {
  sessionId: string;
  permissionId: string;
  replyId: string;
  /** `unknown`: no acknowledgement came. */
  result: "won" | "lost" | "closed" | "unknown";
  /** Of a lost one: the reply id of the winner, as reported to it. */
  winner?: string;
}

/** Events that a watcher received of a session, or of one call, across its reconnects. */
export interface Watch {
  sessionId: string;
  callId?: string;
  events: SessionEvent[];
}

/** A history in which nothing has happened yet. */
export function newHistory(): History {
  return { calls: [], answers: [], watches: [], logs: new Map(), ledger: [] };
}
