import type { ToolProgress } from "../../../gen/opencode/tool/v1/event_pb.ts";
import type { DecisionRecord } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import type { ToolPart } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import type { CallRef } from "../../core/call-ref.ts";
import type { RemoteMark } from "../../tool/remote.ts";
import type { QueuedCall } from "./leases.ts";
import type { CallRecord, CallSpec, Fence } from "./record.ts";

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
  /** Open calls that the session may have, including this one. Delegated calls (`spec.delegated`) neither count nor are limited. */
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

/** The end of a call whose parent ends. Its open asks are withdrawn with the text of its error. */
export interface EndedChild {
  ref: CallRef;
  /** The version from which `part` was computed. */
  version: number;
  /** The terminal part. */
  part: ToolPart;
}
