import type { CallRef } from "../../core/call-ref.ts";
import type { RemoteMark } from "../../tool/remote.ts";
import type { CallRecord, Fence } from "./record.ts";

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
