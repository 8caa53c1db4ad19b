import type { JsonObject } from "@bufbuild/protobuf";
import type { AuditEntry, DecisionRecord, Grant, PermissionSettled } from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { PermissionRequest, ToolErrorReason, ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { CallRef } from "../core/call-ref.ts";
import type { NewNotice } from "../reach/ports.ts";

/**
 * All ports of approval, one interface per family. Every method is one atomic step and resolves when it is durable. A module
 * depends on the families it uses, not on this type.
 */
export interface PermissionStore extends AskStore, GrantStore, AuditLog {}

/** Asks: reads, and the settlement that decides each one. A call opens its asks through `AskOpener`. */
export interface AskStore {
  /** Reads one ask with its call; undefined if the session has none with that id. */
  getAsk(sessionId: string, id: string): Promise<AskRecord | undefined>;
  /** Reads one ask of any session with its call. */
  findAsk(id: string): Promise<AskRecord | undefined>;
  /** Lists every ask that a call has opened, in order. */
  asksOf(call: CallRef): Promise<AskRecord[]>;
  /** Lists open asks, oldest first, of one tree or of all; `after` is the id of the last one of the previous page. */
  openAsks(filter: OpenFilter): Promise<AskRecord[]>;
  /** Lists the same without their calls, for viewers. */
  openRequests(filter: OpenFilter): Promise<PermissionRequest[]>;
  /** Counts the open asks of all trees; `oldest` is the time at which the oldest of them was opened (ms since the epoch). */
  countOpenAsks(): Promise<{ count: number; oldest?: number }>;
  /** Counts the open asks of all trees whose deadline is later than this time (ms since the epoch). */
  countLongAsks(time: number): Promise<number>;
  /** Lists open asks past their deadline, and those with a step that is due. */
  dueAsks(limit: number): Promise<AskRecord[]>;
  /** escalate_ask: takes the steps of an open ask that are due; false if none is, or a record that it was computed from has changed. */
  escalate(escalation: Escalation): Promise<boolean>;
  /** settle_ask: of all settlements of one ask exactly one wins; it writes asks, calls, grants and events together. */
  settle(settlement: Settlement): Promise<SettleResult>;
}

export type OpenFilter = { root?: string | undefined; after?: string | undefined; limit: number };

/** An ask and the call that waits for it, read as one snapshot. */
export interface AskRecord {
  request: PermissionRequest;
  /** The settlement; absent while the ask is open. */
  settled?: PermissionSettled;
  /** The caller. */
  principal: string;
  /** The person of the caller; neither this person nor one that descends from it must answer. */
  person: string;
  /** The definition that the call is bound to. */
  definitionId: string;
  call: CallRef;
  /** The call's snapshot and version at the time of reading. */
  part: ToolPart;
  version: number;
}

/** A wait for approvers that has ended. */
export interface EndedWait {
  readonly part: ToolPart;
  readonly ms: number;
}

/** A call of a settlement, at the version that was read. */
export interface SettledCall {
  ref: CallRef;
  version: number;
  /** The new snapshot: terminal for a call that ends, or pending for a call whose input was edited. */
  part?: ToolPart;
  /** Starts the call in the same step. It must have no other open ask and no owner. */
  start?: SettledStart;
}

/** Start of a call by the settlement of its last ask: the step claims the call for the owner and writes the start mark. */
export interface SettledStart {
  owner: string;
  leaseMs: number;
  /** The running part. */
  part: ToolPart;
}

/** Changes of one answer, expiry or withdrawal, computed from records at the versions that it names. */
export interface Settlement {
  root: string;
  /** The ask that must still be open; the others in `settled` and `voted` follow from it. */
  askId: string;
  /** Settlements of the ask above and of those that end with it. */
  settled: readonly PermissionSettled[];
  /** The calls of these asks. */
  calls: readonly SettledCall[];
  /** The grants that "always" saves. */
  grants: readonly Grant[];
  /** Requests that get a vote and stay open, each with all its votes. The versions of the calls order the votes. */
  voted?: readonly PermissionRequest[];
  /** Records for the audit of the tree. */
  decisions?: readonly DecisionRecord[];
  /** Waits that end with it, for metrics; not stored. */
  waits?: readonly EndedWait[];
  /** Set if grants are saved: the asks version of the tree before its open asks were read, so that none is missed. */
  asksVersion?: number;
  /** True for an expiry, which counts from the deadline on; an answer counts until then (by the store's clock). */
  expired: boolean;
}

/** The steps of an ask that are taken, computed from its call at this version. */
export interface Escalation {
  call: CallRef;
  version: number;
  /** The request with the steps taken. */
  request: PermissionRequest;
  /** Notices for whom they add; a channel or person who has one gets no second. */
  notices: readonly NewNotice[];
  decisions: readonly DecisionRecord[];
}

/**
 * Outcome of a settlement. "won": it was written; `unclaimed` are the calls that now wait for no ask and have no owner, so that
 * a replica has to claim them. "lost" with `settled`: another settlement had won. "lost" without: the deadline has passed for an
 * answer, or lies ahead for an expiry. "retry": a record it was computed from has changed.
 */
export type SettleResult =
  | { result: "won"; unclaimed?: readonly CallRef[] }
  | { result: "lost"; settled?: PermissionSettled }
  | { result: "retry" };

/** The audit of decisions. Each transition writes its decisions in the same step; what belongs to none has its own. */
export interface AuditLog {
  /** record_decisions: adds decisions to the audit of a tree; a root without a session has a chain, too. */
  recordDecisions(root: string, decisions: readonly DecisionRecord[]): Promise<void>;
  /** Lists the audit of a tree, oldest first. */
  listDecisions(page: { root: string; afterSeq: number; limit: number }): Promise<AuditEntry[]>;
  /** Lists the roots of removed trees whose audit is retained, newest first; `before` is the last one of the previous page. */
  listAudits(page: { before?: string; limit: number }): Promise<string[]>;
}

/** Grants, which a settlement saves. */
export interface GrantStore {
  /**
   * Reads the live grants that may serve a tree: its own, and those of its workspace and agent; and the tree's versions. The
   * rules version is raised whenever a grant that the tree may use is saved or revoked, the asks version whenever an ask is
   * opened. A grant with a limit has a use left, or one that `call` has taken.
   */
  grantsFor(tree: {
    root: string;
    workspace: string;
    agent: string;
    call?: CallRef | undefined;
  }): Promise<{ grants: Grant[]; rulesVersion: number; asksVersion: number }>;
  /** Adds the tree to the users of a grant of a wider scope, before relying on it. Returns false if the grant is dead or suspended. */
  adoptGrant(root: string, grantId: string): Promise<boolean>;
  /**
   * take_grant: takes a use of a grant of a wider scope with a limit, before the start mark of the call, which has one at most.
   * Returns false if none is left.
   */
  takeGrant(call: CallRef, grantId: string): Promise<boolean>;
  getGrant(id: string): Promise<Grant | undefined>;
  /** Lists grants, newest first; `tree` limits them to those that may serve it, `before` is the id of the last one of the previous page. */
  listGrants(filter: GrantFilter): Promise<Grant[]>;
  /** revoke_grant: marks the grant dead and raises the rules version of every tree that uses it, then resolves: no call starts because of it afterwards. */
  revokeGrant(id: string, decisions?: readonly DecisionRecord[]): Promise<Grant | undefined>;
  /**
   * confirm_grant: lets a suspended grant serve again, and raises the rules version of every tree that uses it. Returns a grant
   * that is not suspended as it is.
   */
  confirmGrant(id: string, decisions?: readonly DecisionRecord[]): Promise<Grant | undefined>;
}

/** Arguments of `listGrants`. */
export interface GrantFilter {
  tree?: { root: string; workspace: string };
  /** Includes revoked, expired and used up ones. */
  includeDead: boolean;
  before?: string;
  limit: number;
}

/** Effects of an answer on the waiting call. The life of a call implements them; the store writes call and ask in one step. */
export interface AnswerEffects {
  /** Returns the part in its terminal error state. */
  fail(part: ToolPart, reason: ToolErrorReason, error: string): ToolPart;
  /** Returns the part with other arguments and the difference for the model; throws if the call's tool cannot take them. */
  replaceInput(
    call: { part: ToolPart; workspace: string },
    input: JsonObject,
    by: string,
  ): { part: ToolPart; difference: string } | "no difference";
}
