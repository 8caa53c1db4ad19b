import type { SessionEvent, ToolOutput, ToolProgress } from "../../gen/opencode/tool/v1/event_pb.ts";
import type { DecisionRecord } from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { Session } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import type { PermissionRequest, ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { AskRecord, PermissionStore } from "../approval/ports.ts";
import type { CallRef } from "../core/call-ref.ts";
import type { NewNotice } from "../reach/ports.ts";
import type { RemoteMark } from "../tool/remote.ts";
import type { CallRecord, CallSpec, Fence, LeaseStore, QueuedCall } from "./ports/record.ts";

export type { RemoteMark } from "../tool/remote.ts";
export type { CallRecord, CallSpec, Delegation, Fence, LeaseStore, OrphanedCall, QueuedCall } from "./ports/record.ts";

/**
 * All ports of calls, one interface per family. Every method is one atomic step and resolves when it is durable. The domain
 * computes what a step writes; the store checks the guards, assigns the sequence numbers and writes everything or nothing.
 * `decisions` of a step are added to the audit of the tree if the step is taken. A module depends on the families it uses,
 * not on this type.
 */
export interface CallStore
  extends SessionStore,
    CallTransitions,
    CallRecordReader,
    AskOpener,
    LeaseStore,
    EventLog,
    EncodedMessages,
    ToolMemory,
    StoreMembership,
    StoreClock,
    Retention {}

/** An open store. `calls.close()` closes all of it. */
export interface Store {
  calls: CallStore;
  permissions: PermissionStore;
  outputs: OutputStore;
}

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

/** This replica's membership in the store: identity, agreement with other replicas, health. */
export interface StoreMembership {
  /** Identifies the store's contents; a new id means that all earlier contents are lost. */
  readonly storeId: string;
  /**
   * Identifies the contents of a session tree: the store id, and after a dot the generation of its shard, if a failover can raise
   * that. Another one means that acknowledged work of the tree may be lost.
   */
  storeIdOf(root: string): string;
  /**
   * Reads these ids from the store again, of this session tree: another replica may know later ones. Throws STORE_UNAVAILABLE if the
   * store does not answer, or too few of its copies do.
   */
  verifyIds(root?: string): Promise<void>;
  /** Number of the store's format: versions with the same one can share or follow each other on a store, in both directions. */
  readonly format: number;
  /** True if other replicas may take over calls whose lease has lapsed. */
  readonly isShared: boolean;
  /**
   * Announces the digest of this replica's policy; returns false if replicas that share the store have another one. A start or a reload
   * takes its policy for all, which those with another one then find; within ten minutes only a reload takes a replaced one back.
   */
  agrees(policy: string, takes?: "start" | "reload"): Promise<boolean>;
  /** Returns true if the store answers. */
  ready(): Promise<boolean>;
  /** Durability of acknowledged writes when a server of the store is lost, as of the last check. */
  safety(): StoreSafety;
  /** Bytes of the files of the store by part, now; none of a store that another program holds. */
  sizes(): Promise<Readonly<Record<string, number>>>;
  /** Closes the store with all of its ports. */
  close(): Promise<void>;
}

/** Durability of acknowledged writes when a server of the store is lost. */
export interface StoreSafety {
  /** Connected copies of the server that has fewest; 0 for a store without copies. */
  readonly copies: number;
  /** Copies that each server should have: the most that were counted, or the number of the settings. */
  readonly expected: number;
  /** Copies that have what a step wrote before it is acknowledged; 0 if it is acknowledged at once. */
  readonly required: number;
  /** Facts for which a failover may lose more than it has to, each with the next step. */
  readonly warnings: readonly string[];
}

/** The clock that decides leases and deadlines. */
export interface StoreClock {
  /** Ms since the epoch. */
  now(): number;
}

/** Removal of records past their retention time. */
export interface Retention {
  /** Removes them; returns the names of outputs whose content can be removed too. */
  sweep(): Promise<{ outputs: { root: string; id: string }[] }>;
}

/** Whole outputs, by id, in their session tree. Bytes are durable before the event that names them. */
export interface OutputStore {
  /** Appends bytes. Once it resolves the caller may reuse `data`. */
  append(root: string, id: string, data: Uint8Array): Promise<void>;
  /** Reads a range; undefined if no output has that id. */
  read(
    root: string,
    id: string,
    offset: number,
    limit: number,
  ): Promise<{ data: Uint8Array; total: number } | undefined>;
  remove(root: string, id: string): Promise<void>;
}

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
  /** Lists calls in the order of acceptance. Fewer than `limit` are the last ones. */
  listCalls(filter: CallFilter): Promise<CallRecord[]>;
}

/** Calls of a session to list. */
export interface CallFilter {
  sessionId: string;
  open?: boolean;
  /** The last call of the previous page, with its place: it may be removed before the next one is read. */
  after?: { ref: Pick<CallRef, "callId">; openedSeq: number };
  limit: number;
}

/** Sessions and their trees. */
export interface SessionStore {
  /** Adds the session, or returns the existing one with that id. Refuses a child of a closed session with SESSION_CLOSED. */
  createSession(session: Session): Promise<Session>;
  getSession(id: string): Promise<Session | undefined>;
  /** Lists sessions, newest first; `before` is the id of the last one of the previous page. */
  listSessions(filter: { owner?: string; root?: string; before?: string; limit: number }): Promise<Session[]>;
  /** Marks the session and its descendants closed; returns the open calls of all of them. */
  closeSession(id: string): Promise<CallRef[]>;
}

/** Values that tools store between calls. */
export interface ToolMemory {
  /** Returns the SHA-256 (hex) of a file as the session tree last read it, by canonical path. */
  getRead(root: string, path: string): Promise<string | undefined>;
  recordRead(root: string, path: string, sha256: string): Promise<void>;
  /** Returns a tool's value of a session, as JSON text, by name; it lives as long as the session. */
  getState(session: Pick<CallRef, "root" | "sessionId">, name: string): Promise<string | undefined>;
  setState(session: Pick<CallRef, "root" | "sessionId">, name: string, value: string): Promise<void>;
}

/** Opening of asks by the call that makes them; `AskStore` reads and settles them. */
export interface AskOpener {
  /**
   * open_asks: withdraws the call's open asks named in `withdraw`, and opens others. Returns false if the fence does not hold
   * or the call or the rules have changed since `version` or `rulesVersion`. Refuses with QUOTA_EXCEEDED. With `dueMs` the
   * same step ends the lease: the call waits without an owner.
   */
  openAsks(step: OpenAsksStep): Promise<boolean>;
  /**
   * rebind_call: replaces the request data of a call that has not started and has no live owner, and withdraws its open asks. The call
   * is an orphan at once, so that it is asked for again; a delegated one when its time to be collected is over. Returns false if the
   * call has changed since `version`, was started, or has an owner.
   */
  rebindCall(step: RebindCallStep): Promise<boolean>;
}

/** Arguments of `rebindCall`. */
export interface RebindCallStep extends Pick<CallRecord, "ref" | "version" | "spec"> {
  /** Message of the withdrawals. */
  message: string;
}

/** Arguments of `openAsks`. */
export interface OpenAsksStep {
  fence: Fence;
  version: number;
  /** The rules version at which grants were consulted: an ask that a newer grant covers must not be opened. */
  rulesVersion?: number;
  asks: readonly PermissionRequest[];
  /** Notices of these asks. */
  notices?: readonly NewNotice[];
  /** Ids of asks to withdraw. */
  withdraw: readonly string[];
  /** Message of the withdrawals. */
  message: string;
  /** Open asks that the session tree may have. */
  maxOpenAsks: number;
  decisions?: readonly DecisionRecord[];
  /** Ends the lease: the time until recovery checks the call, unless its last ask is settled before. */
  dueMs?: number;
  /**
   * Set, with `progress`, for a call that waits for a worker, which the other replicas are notified of. The first time counts, until the
   * call asks or starts.
   */
  queued?: QueuedCall;
  /** The event that says for what the call waits, if for no ask. */
  progress?: ToolProgress;
}

/** Transitions of a call, from acceptance to its terminal state. */
export interface CallTransitions {
  /**
   * open_call: accepts a call under a lease, or returns the existing one with that id. The part is pending. With `start`,
   * the running part, the same step also starts the call: for a call that was evaluated before acceptance and needs no
   * answer. A call with more than `maxRepeats` repeats is accepted without being started. With `end`, the terminal part, the
   * step that starts the call also ends it: for a call without effects whose body has already run. With `queued` instead of `start`,
   * the call waits for a worker from the same step on, without an owner.
   * Refuses with SESSION_CLOSED or QUOTA_EXCEEDED, and with NO_SUCH_CALL if the parent (`spec.parent`) is not open.
   */
  openCall(step: OpenCallStep): Promise<OpenedCall>;
  /**
   * prepare_call: records that the before-hooks have run, and writes the part if they changed its input. Returns true once:
   * false if the call is already prepared or started, or if the fence does not hold.
   */
  prepareCall(step: { fence: Fence; part?: ToolPart | undefined }): Promise<boolean>;
  /**
   * note_call: replaces the stored hook state or memo of an open call, and adds decisions made during its run to the audit.
   * Emits no event. Returns false if the fence does not hold.
   */
  noteCall(step: NoteCallStep): Promise<boolean>;
  /**
   * start_call: writes the start mark. Requires a live lease, and the version and (where grants were consulted) the rules
   * version of the decision. "fenced": another owner has the call, or it has ended; "retry": evaluate policy again. With
   * `delegated` the same step ends the lease: nobody here runs the body.
   */
  startCall(step: StartCallStep): Promise<"started" | "fenced" | "retry">;
  /**
   * finish_call: writes the terminal part, withdraws the call's open asks, ends the lease. Guarded by the fence, or by the
   * version (for callers other than the owner). The same step ends its children. Returns the part as stored; undefined if the
   * guard fails or the call has already ended; "open children" if `children` are not exactly its open children as they are.
   */
  finishCall(step: FinishCallStep): Promise<ToolPart | "open children" | undefined>;
  /**
   * request_cancel: asks the owner of a running call to stop it; the session's news notify the owner. The first message wins.
   * With `part`, for a delegated call, the same step writes the running part, which shows the request.
   */
  requestCancel(ref: CallRef, message: string, part?: ToolPart): Promise<void>;
  /** note_report: adds the late report of a delegated call that has ended to the audit. Returns true once for each call. */
  noteReport(ref: CallRef, decisions: readonly DecisionRecord[]): Promise<boolean>;
}

/** Result of `openCall`: the call as it is after the step, and whether this step created it. */
export interface OpenedCall {
  record: CallRecord;
  created: boolean;
}

/** Arguments of `openCall`. */
export interface OpenCallStep {
  ref: CallRef;
  /** The pending part. */
  part: ToolPart;
  /** The running part, for a call that may start in the same step. */
  start?: ToolPart | undefined;
  /** The terminal part, for a call that may start and whose body has already run. */
  end?: ToolPart | undefined;
  /** Files that the body has read so far, canonical path → SHA-256 (hex); recorded only if the call starts. */
  reads?: ReadonlyMap<string, string> | undefined;
  /** The number of repeats up to which the call may start, or wait for a worker, in the same step; default: any. */
  maxRepeats?: number | undefined;
  spec: CallSpec;
  owner: string;
  leaseMs: number;
  /** Open calls that the session may have, including this one: delegated ones (`spec.delegated`), or others. */
  maxOpenCalls: number;
  /** Calls of the session that run and that are not recorded yet; they count as open. Default: 0. */
  unrecordedCalls?: number;
  /** Decisions that the start rests on; added to the audit only if the call starts. */
  decisions?: readonly DecisionRecord[] | undefined;
  /** For a delegated call that may start in the same step. */
  delegated?: HostStart | undefined;
  /** For a call that may start in the same step and whose body a worker runs. */
  remote?: RemoteMark | undefined;
  /** For a call that could start, and for which no worker of this replica has capacity, with `progress`; see `OpenAsksStep`. */
  queued?: QueuedCall | undefined;
  progress?: ToolProgress | undefined;
  /** Called last before the step is sent; throws if the store is no longer the one that the request names. */
  checkStore?: () => void;
}

/** Arguments of `noteCall`: what is left out stays as it is. */
export interface NoteCallStep {
  fence: Fence;
  hooked?: string;
  memo?: string;
  decisions?: readonly DecisionRecord[];
}

/** Start of a delegated call: the hash of its assignment, and the time until recovery checks it. */
export interface HostStart {
  assignment: string;
  reportMs: number;
}

/** Arguments of `startCall`. */
export interface StartCallStep {
  fence: Fence;
  version: number;
  /** The rules version at which grants were consulted. */
  rulesVersion?: number;
  /** Grants that the decision rests on; their last use is set to now. */
  grantIds?: readonly string[];
  /** Those of them in the tree that have a limit; each has a use left for this call, and counts it. */
  counted?: readonly { id: string; times: number }[];
  /** The running part. */
  part: ToolPart;
  decisions?: readonly DecisionRecord[];
  /** For a delegated call. */
  delegated?: HostStart;
  /** For a call whose body a worker runs. */
  remote?: RemoteMark | undefined;
}

/** Arguments of `finishCall`. */
export interface FinishCallStep {
  ref: CallRef;
  guard: { fence: Fence } | { version: number };
  /** The terminal part. */
  part: ToolPart;
  decisions?: readonly DecisionRecord[];
  /** The open calls that this one made and waits for (`spec.parent`), and those that they made. Default: none. */
  children?: readonly EndedChild[];
}

/** The terminal part of a call whose parent ends, and the version from which it was computed. Its open asks are withdrawn with the text of its error. */
export type EndedChild = Pick<CallRecord, "ref" | "version" | "part">;
