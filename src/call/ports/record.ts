import type { ToolPart } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import type { CallRef } from "../../core/call-ref.ts";
import type { RemoteMark } from "../../tool/remote.ts";
import type { TraceContext } from "../../tool/tool.ts";

/** Request data of a call, stored as JSON next to the part: enough for any replica to run the call. */
export interface CallSpec {
  /** The caller. */
  principal: string;
  /** The person of the caller, if that is another principal than the caller itself: the creator of the code with which it signed in. */
  person?: string | undefined;
  /** SHA-256 of the tool and the canonical input as sent; an attaching request must have the same. */
  requestDigest: string;
  /** Time limit in ms; 0 selects the tool's default. */
  timeoutMs: number;
  /** Time for which the call may wait for a worker with capacity, in ms; absent: the tool's default. */
  queueMs?: number;
  providerId: string;
  modelId: string;
  /** The definition that the call is bound to: the caller's, otherwise the one resolved at acceptance. */
  definitionId: string;
  /** The caller named the definition, so the call runs with no other one. */
  named?: true;
  /** Set by `rebindCall`: why the call is asked for again, and the time of it in ms since the epoch. */
  rebound?: { why: string; time: number };
  /** Time of acceptance, in ms since the epoch. */
  accepted: number;
  /** The caller's position in a trace, if the request named one. */
  trace?: TraceContext;
  /** Set for a call that its caller runs itself. */
  delegated?: Delegation;
  /** The call of the same session that made this one and waits for it. */
  parent?: string;
  /** Set for a call whose body only makes calls: once it is started every replica may enter it again. */
  durable?: true;
  /** The `bodyBinding` of the tool of a durable call. A tool with the same one may enter the body again. */
  bodyBinding?: string;
}

/** A delegated call as its host described it. */
export interface Delegation {
  /** The agent's kind and its own name of the tool. */
  kind: string;
  tool: string;
  /** Working directory of the agent: canonical if the disk is shared, otherwise as text. */
  directory: string;
  /** True if the host proved that it sees the same files as the service. */
  isDiskShared: boolean;
  /** Time for which permission requests stay open, in ms. */
  askMs: number;
  /** Time after the last answer in which a request must collect the approval, in ms. */
  collectMs: number;
}

/** A call as stored. */
export interface CallRecord {
  ref: CallRef;
  /** The last snapshot, with the whole input; `permission_ids` are the asks open now. */
  part: ToolPart;
  spec: CallSpec;
  /** Sequence number of the call's first event in the session's log. */
  openedSeq: number;
  /** Version of the record: raised by each transition and by each ask that is opened or settled. */
  version: number;
  /** Fencing token: raised by each claim. */
  epoch: number;
  /** The replica that holds a live lease; empty without one. */
  owner: string;
  /** Number of times that the tool body was entered. */
  attempts: number;
  /** Number of consecutive calls directly before this one in its session with the same tool and input. */
  repeats: number;
  /** Set once the before-hooks have run: the input is their result. */
  prepared?: true;
  /** State of other hooks, as JSON; deleted when the call ends. */
  hooked?: string;
  /** Value, as JSON, with which a replica enters the body of a started durable call again; deleted when the call ends. */
  memo?: string;
  /** Set when the cancellation of a running call was requested: the message for the model. */
  cancel?: string;
  /** Hash of the assignment with which the host of a delegated call reports; set by the start. */
  assignment?: string;
  /** The worker process that runs the body; set by the start, replaced by each adoption. */
  remote?: RemoteMark;
  /** Set while a call waits for a worker: the time at which it ends without one, in ms since the epoch. */
  queuedUntil?: number;
  /** Set if a failover since the call was accepted may have lost its start mark: its body must not be entered. */
  mayHaveRun?: true;
  /** Set on a tombstone: the call ended, and only its id, digest and terminal state remain. */
  expired?: true;
}

/** The right to write to a call: the replica that opened or claimed it, and the epoch that it got. */
export interface Fence {
  ref: CallRef;
  owner: string;
  epoch: number;
}

/** Leases: the time-limited ownership of open calls by replicas. */
export interface LeaseStore {
  /**
   * claim_call: takes over a call without an owner or whose lease has lapsed, to be started (again, unless its body was entered
   * `maxAttempts` times; by default 1: a started call is not claimed). A started call of a worker is not claimed until `resumeMs` after its lease.
   * Returns undefined if there is nothing to claim.
   */
  claimCall(ref: CallRef, owner: string, leaseMs: number, maxAttempts?: number): Promise<CallRecord | undefined>;
  /**
   * park_call: ends the lease of a started call that waits for open children. It is an orphan when the last of them ends, or
   * after `dueMs`. Returns false if the fence does not hold or no child is open. With a `dueMs` of 0 it needs no child: it is
   * an orphan at once.
   */
  parkCall(fence: Fence, dueMs: number): Promise<boolean>;
  /**
   * resume_call: takes over a started call without an owner or a live lease, to enter its body again; the start mark stays.
   * Returns undefined if there is nothing to resume.
   */
  resumeCall(ref: CallRef, owner: string, leaseMs: number): Promise<CallRecord | undefined>;
  /**
   * adopt_call: takes over a started call whose worker is connected to this replica now, to go on with its body. It needs no lapsed
   * lease, since the worker has left its former connection. Requires the principal, instance and assignment of the stored mark,
   * and a higher connection; stores the given mark. Returns undefined if a guard fails.
   */
  adoptCall(ref: CallRef, mark: RemoteMark, owner: string, leaseMs: number): Promise<CallRecord | undefined>;
  /**
   * restart_call: takes back the start of a call whose body its worker has not entered and will not enter: the call has no
   * owner, is an orphan at once, waits for a worker as `queued` says, and the attempt does not count. Requires the stored mark,
   * over the same connection or a higher one. Returns false if a guard fails.
   */
  restartCall(ref: CallRef, mark: RemoteMark, queued: QueuedCall): Promise<boolean>;
  /** renew_leases: renews every lease of the owner, including lapsed ones that were not claimed; returns the calls that it still holds. */
  renewLeases(owner: string, leaseMs: number): Promise<CallRef[]>;
  /** release_calls: ends the owner's leases on calls that are not started, so that others can claim them at once. */
  releaseCalls(owner: string): Promise<void>;
  /** Lists all orphaned calls, the longest orphaned first. */
  orphans(): Promise<OrphanedCall[]>;
  /** Notifies the other replicas of calls that this one leaves unclaimed. Notices can be lost: `orphans` lists the calls too. */
  announceUnclaimed(calls: readonly CallRef[]): Promise<void>;
  /** Subscribes to the notices of other replicas; returns the function that unsubscribes. */
  onUnclaimed(listener: (call: CallRef) => void): () => void;
}

/**
 * An open call whose lease has lapsed. A call that waits without an owner becomes an orphan when its last ask is settled, or
 * when the time of `OpenAsksStep.dueMs` is over, a parked one when its last child ends; a delegated call when its time to be collected or reported is over.
 */
export interface OrphanedCall {
  ref: CallRef;
  /** True if its body was entered since the last claim. */
  started: boolean;
  /** True if its host runs it. */
  delegated: boolean;
  /** Set for a started call of a worker, which may still come back to it until `resumeMs` after `since`. */
  remote?: RemoteMark;
  /** Set for a call that waits for a worker. */
  queued?: QueuedCall;
  /** Time at which the lease lapsed, or of a later settlement of its asks or end of its children; ms since the epoch. */
  since: number;
}

/** The wait of a call for a worker with capacity. */
export interface QueuedCall {
  /** The definition that the worker has to serve. */
  definitionId: string;
  /** Time at which the call ends without one, in ms since the epoch. */
  until: number;
}
