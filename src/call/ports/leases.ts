import type { CallRef } from "../../core/call-ref.ts";
import type { CallRecord, Fence } from "./record.ts";

/** Leases: the time-limited ownership of open calls by replicas. */
export interface LeaseStore {
  /**
   * claim_call: takes over a call without an owner or whose lease has lapsed, to be started (again, unless its body was entered
   * `maxAttempts` times; by default 1: a started call is not claimed). Returns undefined if there is nothing to claim.
   */
  claimCall(ref: CallRef, owner: string, leaseMs: number, maxAttempts?: number): Promise<CallRecord | undefined>;
  /**
   * park_call: ends the lease of a started call that waits for open children. It is an orphan when the last of them ends, or
   * after `dueMs`. Returns false if the fence does not hold or no child is open.
   */
  parkCall(fence: Fence, dueMs: number): Promise<boolean>;
  /**
   * resume_call: takes over a started call without an owner or a live lease, to enter its body again; the start mark stays.
   * Returns undefined if there is nothing to resume.
   */
  resumeCall(ref: CallRef, owner: string, leaseMs: number): Promise<CallRecord | undefined>;
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
  /** Time at which the lease lapsed, or of a later settlement of its asks or end of its children; ms since the epoch. */
  since: number;
}
