import type { SessionEvent } from "../../gen/opencode/tool/v1/event_pb.ts";
import type { ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { LedgerLine } from "./ledger.ts";

/** What clients did and were told, what the logs say in the end, and what really ran. */
export interface History {
  calls: ToldCall[];
  answers: Answer[];
  watches: Watch[];
  /** The whole log of each session, read when all was over. */
  logs: Map<string, readonly SessionEvent[]>;
  ledger: LedgerLine[];
}

/** A call, as its caller knows it. */
export interface ToldCall {
  sessionId: string;
  callId: string;
  /** Whether a person has to approve it. */
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
  /** Of a lost one: the reply id that it was told has won. */
  winner?: string;
}

/** What a watcher saw of a session, or of one call, across its reconnects. */
export interface Watch {
  sessionId: string;
  callId?: string;
  events: SessionEvent[];
}

/** A history in which nothing has happened yet. */
export function newHistory(): History {
  return { calls: [], answers: [], watches: [], logs: new Map(), ledger: [] };
}
