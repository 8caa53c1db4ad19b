import type { AskRecord } from "../../approval/ports.ts";
import type { CallRef } from "../../core/call-ref.ts";
import type { CallRecord } from "./record.ts";

/** A call with every ask that it has opened, in order. */
export interface CallWithAsks {
  record: CallRecord;
  asks: readonly AskRecord[];
}

/** Reads of stored calls. */
export interface CallRecordReader {
  getCall(sessionId: string, callId: string): Promise<CallRecord | undefined>;
  /** Reads a call and every ask that it has opened, in order, as one snapshot. */
  getCallWithAsks(ref: CallRef): Promise<CallWithAsks | undefined>;
  /** Reads the call of an ask of this session, and every ask that it has opened, in order, as one snapshot. */
  getCallOfAsk(sessionId: string, askId: string): Promise<CallWithAsks | undefined>;
  /** Finds the delegated call that was started with an assignment of this hash. */
  findAssigned(assignment: string): Promise<CallRecord | undefined>;
  /** Lists the open delegated calls of a session with this request digest, in the order of acceptance. */
  findDelegated(sessionId: string, requestDigest: string): Promise<CallRecord[]>;
  /** Predicts `repeats` of the session's next call, if it is this request. */
  repeatsOf(sessionId: string, requestDigest: string): Promise<number>;
  /** Lists calls in the order of acceptance; `after` is the call id of the last one of the previous page. */
  listCalls(filter: { sessionId: string; open?: boolean; after?: string; limit: number }): Promise<CallRecord[]>;
}
