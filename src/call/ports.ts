import type { SessionEvent, ToolOutput, ToolProgress } from "../../gen/opencode/tool/v1/event_pb.ts";
import type { DecisionRecord } from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { Session } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import type { PermissionRequest, ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { AskRecord } from "../approval/ports.ts";
import type { CallRef } from "../core/call-ref.ts";
import type { TraceContext } from "../tool/tool.ts";

/** What the caller asked for, kept as JSON beside the part: enough for any replica to run the call. */
export interface CallSpec {
  /** Who made the call. */
  principal: string;
  /** SHA-256 of tool and canonical input as sent: what an attaching request is compared by. */
  requestDigest: string;
  /** 0: the tool's own. */
  timeoutMs: number;
  providerId: string;
  modelId: string;
  /** The definition that the call is bound to: the caller's, else what was resolved when it was accepted. */
  definitionId: string;
  /** When it was accepted, in ms since the epoch. */
  accepted: number;
  /** The caller's place in a trace, if it said. */
  trace?: TraceContext;
}

/** A call as the store has it. */
export interface CallRecord {
  ref: CallRef;
  /** The last snapshot, with its whole input; `permission_ids` are the asks open now. */
  part: ToolPart;
  spec: CallSpec;
  /** The number of its first event in its session's log. */
  openedSeq: number;
  /** Raised by each transition and by each ask that is opened or settled. */
  version: number;
  /** The fencing token: raised by each claim. */
  epoch: number;
  /** The replica that holds the lease; empty if nobody does. */
  owner: string;
  /** How often its body was entered. */
  attempts: number;
  /** How many calls directly before it in its session were the same request: the same tool and input. */
  repeats: number;
  /** Set once the hooks that come before a call have run: its input is what they left. */
  prepared?: true;
  /** What other hooks have said of it so far, as JSON; forgotten when it ends. */
  hooked?: string;
  /** Set when somebody asked to cancel a running call: the words for the model. */
  cancel?: string;
  /** Set on a tombstone: the call ended, and only its id, digest and end state are left. */
  expired?: true;
}

/** The right to write to a call: the replica that opened or claimed it, under the epoch it got. */
export interface Fence {
  ref: CallRef;
  owner: string;
  epoch: number;
}

/** A page of a log. */
export interface LogPage {
  events: SessionEvent[];
  /** The first number that is still there, and the last one there is (0 in an empty log). */
  firstSeq: number;
  lastSeq: number;
}

/**
 * Sessions, calls and the log. Every method is one atomic step and resolves when it is durable. What a step writes was
 * computed by the domain; the store checks the guards, gives the numbers and writes all of it or nothing. `decisions` are
 * what a step rests on: they are added to the audit of the tree, if the step is taken.
 */
export interface CallStore {
  /** Names the store's contents; another one means that everything known before is gone. */
  readonly storeId: string;
  /** Whether other replicas may take over calls whose lease has lapsed. */
  readonly isShared: boolean;
  /** Ms since the epoch by the clock that decides leases and deadlines. */
  now(): number;

  /** Adds the session, or returns the one of that id. */
  createSession(session: Session): Promise<Session>;
  getSession(id: string): Promise<Session | undefined>;
  /** Newest first. */
  listSessions(filter: { owner?: string; root?: string; before?: string; limit: number }): Promise<Session[]>;
  /** Marks the session and its descendants closed; returns the open calls of all of them. */
  closeSession(id: string): Promise<CallRef[]>;

  /**
   * open_call: accepts a call under a lease, or returns the one of that id. The part is pending; with `start`, the running
   * part, the same step also is its start_call: for a call that was judged before it was accepted and waits for nobody. A
   * call with more than `maxRepeats` is accepted only.
   * Refuses with SESSION_CLOSED, QUOTA_EXCEEDED.
   */
  openCall(call: {
    ref: CallRef;
    part: ToolPart;
    start?: ToolPart | undefined;
    maxRepeats?: number | undefined;
    spec: CallSpec;
    owner: string;
    leaseMs: number;
    maxOpenCalls: number;
    decisions?: readonly DecisionRecord[] | undefined;
  }): Promise<{ record: CallRecord; created: boolean }>;
  /**
   * claim_call: takes over a call that no living lease holds, to be started (again, unless its body was entered `maxAttempts`
   * times, default 1: what was started is not claimed). Undefined if there is nothing to claim.
   */
  claimCall(ref: CallRef, owner: string, leaseMs: number, maxAttempts?: number): Promise<CallRecord | undefined>;
  /** open_asks: withdraws the call's open asks named in `withdraw`, with that message, and opens others. False if fenced off or changed since `version` or `rulesVersion`. Throws `QuotaExceeded`. */
  openAsks(step: {
    fence: Fence;
    version: number;
    /** Where grants were looked at: what one was saved for meanwhile must not be asked. */
    rulesVersion?: number;
    asks: readonly PermissionRequest[];
    withdraw: readonly string[];
    message: string;
    maxOpenAsks: number;
    decisions?: readonly DecisionRecord[];
  }): Promise<boolean>;
  /**
   * prepare_call: says that the hooks before a call have run, and writes the part if they changed its input. Once: false if
   * it was said before, if the call was started, or if it is fenced off.
   */
  prepareCall(step: { fence: Fence; part?: ToolPart | undefined }): Promise<boolean>;
  /**
   * note_call: keeps what hooks said of an open call, in place of what was kept, and adds what was decided in the middle of
   * its run to the audit. Nobody is told. False if it is fenced off.
   */
  noteCall(step: { fence: Fence; hooked?: string; decisions?: readonly DecisionRecord[] }): Promise<boolean>;
  /**
   * start_call: the start mark. Only with a living lease, at the version and (where grants were looked at) the rules version
   * that the decision was made at. "fenced": the call belongs to somebody else or has ended; "retry": judge again.
   */
  startCall(step: {
    fence: Fence;
    version: number;
    rulesVersion?: number;
    /** The grants that it relies on: they were used now. */
    grantIds?: readonly string[];
    part: ToolPart;
    decisions?: readonly DecisionRecord[];
  }): Promise<"started" | "fenced" | "retry">;
  /** record_events: progress and output of a running call. False if fenced off. */
  recordEvents(fence: Fence, events: readonly (ToolProgress | ToolOutput)[]): Promise<boolean>;
  /**
   * finish_call: writes the terminal part, withdraws the call's open asks, ends the lease. Guarded by the fence, or by the
   * version (for others than the owner). Returns the part as it is stored; undefined if the guard fails or the call has ended.
   */
  finishCall(step: {
    ref: CallRef;
    guard: { fence: Fence } | { version: number };
    part: ToolPart;
    decisions?: readonly DecisionRecord[];
  }): Promise<ToolPart | undefined>;
  /** Asks the owner of a running call to stop it; the log's doorbell tells it. */
  requestCancel(ref: CallRef, message: string): Promise<void>;
  /** renew_leases: all of this owner, also one that lapsed while nobody took the call; returns the calls it still holds. */
  renewLeases(owner: string, leaseMs: number): Promise<CallRef[]>;
  /** Hands this owner's unstarted calls back, so that others claim them at once. */
  releaseCalls(owner: string): Promise<void>;
  /** Open calls that no living lease holds: started ones are lost, the others may be claimed unless they wait for an ask. */
  orphans(limit: number): Promise<{ record: CallRecord; started: boolean; openAsks: number; since: number }[]>;
  /** Removes what is past its time: outputs' names are returned so that their content can go too. */
  sweep(): Promise<{ outputs: { root: string; id: string }[] }>;

  getCall(sessionId: string, callId: string): Promise<CallRecord | undefined>;
  /** A call with every ask that it has ever opened, in order, all as they are at one moment. */
  getCallWithAsks(ref: CallRef): Promise<{ record: CallRecord; asks: AskRecord[] } | undefined>;
  /** What `repeats` of the session's next call would be, if it were this request. */
  repeatsOf(sessionId: string, requestDigest: string): Promise<number>;
  /** In the order they were accepted; `after` is the call id of the last one seen. */
  listCalls(filter: { sessionId: string; open?: boolean; after?: string; limit: number }): Promise<CallRecord[]>;

  /** What the session tree has read: canonical path → SHA-256 (hex). */
  getRead(root: string, path: string): Promise<string | undefined>;
  recordRead(root: string, path: string, sha256: string): Promise<void>;

  /** What a tool keeps for a session, as JSON text, under a name; it lives as long as the session. */
  getState(session: Pick<CallRef, "root" | "sessionId">, name: string): Promise<string | undefined>;
  setState(session: Pick<CallRef, "root" | "sessionId">, name: string, value: string): Promise<void>;

  /** The binary form of an event, or of a call's part, that this store handed out; undefined if it would have to be made. */
  bytesOf(message: SessionEvent | ToolPart): Uint8Array | undefined;
  /** Events after a number, in order, up to about `maxBytes`. */
  readLog(sessionId: string, afterSeq: number, maxBytes: number): Promise<LogPage>;
  /** Rings when a session has news, with its id and the first new number; for any session if none is named. It may ring too often, never too seldom. */
  onNews(sessionId: string | undefined, listener: (sessionId: string, seq: number) => void): () => void;

  /** Whether the store answers. */
  ready(): Promise<boolean>;
  /** Says that this replica judges by a policy (its digest), and whether those that share the store do, too. */
  agrees(policy: string): Promise<boolean>;
  close(): Promise<void>;
}

/** Whole outputs, by id, in their session tree. Bytes are durable before the event that names them. */
export interface OutputStore {
  /** Once it resolves the data is the caller's again. */
  append(root: string, id: string, data: Uint8Array): Promise<void>;
  /** Undefined if there is none of that id. */
  read(
    root: string,
    id: string,
    offset: number,
    limit: number,
  ): Promise<{ data: Uint8Array; total: number } | undefined>;
  remove(root: string, id: string): Promise<void>;
}
