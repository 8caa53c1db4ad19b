import type { AuditEntry, DecisionRecord, Grant, PermissionSettled } from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { PermissionRequest, ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { CallRef } from "../core/call-ref.ts";

/** An ask and the call that waits on it, read together. */
export interface AskRecord {
  request: PermissionRequest;
  /** How it ended; absent while it is open. */
  settled?: PermissionSettled;
  /** Who made the call: they never answer it. */
  principal: string;
  call: CallRef;
  /** The call's snapshot and version at the time of reading. */
  part: ToolPart;
  version: number;
}

/** Everything that one answer, expiry or withdrawal changes, computed from records that were read at the versions it names. */
export interface Settlement {
  root: string;
  /** The ask that must still be open; the others in `settled` follow from it. */
  askId: string;
  /** How each ask ends: the one above and what goes with it. */
  settled: readonly PermissionSettled[];
  /** The calls of these asks, at the versions at which they were read; `part` is the new snapshot of one that ends with it (then it is terminal) or gets other arguments (then it is pending). */
  calls: readonly { ref: CallRef; version: number; part?: ToolPart }[];
  /** The grants that "always" saves. */
  grants: readonly Grant[];
  /** What the audit of the tree is told of it. */
  decisions?: readonly DecisionRecord[];
  /** Where grants are saved: the asks version of the tree before its open asks were looked at, so that none is overlooked. */
  asksVersion?: number;
  /** The deadline counts: an answer is refused from then on, an expiry until then (store's clock, ms since the epoch). */
  expired: boolean;
}

/** What became of a settlement: it won; another one had won, or (then without `settled`) the deadline decides: it has passed for an answer, or lies ahead for an expiry; or something it was computed from has changed: read again. */
export type SettleResult = { result: "won" } | { result: "lost"; settled?: PermissionSettled } | { result: "retry" };

/** Asks and grants. Every method is one atomic step and resolves when it is durable. Errors of the store are `StoreUnavailable`. */
export interface PermissionStore {
  /** One ask with its call; undefined if the session has none of that id. */
  getAsk(sessionId: string, id: string): Promise<AskRecord | undefined>;
  /** Every ask that a call has ever opened, in order. */
  asksOf(call: CallRef): Promise<AskRecord[]>;
  /** Open asks, oldest first: of one tree, or of all. `after` is the id of the last one seen. */
  openAsks(filter: { root?: string; after?: string; limit: number }): Promise<AskRecord[]>;
  /** Open asks whose deadline has passed. */
  expiredAsks(limit: number): Promise<AskRecord[]>;
  /** settle_ask: of all settlements of one ask exactly one wins; it writes asks, calls, grants and events together. */
  settle(settlement: Settlement): Promise<SettleResult>;
  /**
   * The living grants that may serve a tree: its own, and those of its workspace and agent; and the tree's versions: of its
   * rules, raised whenever a grant that it may use is saved or revoked, and of its asks, raised whenever one is opened.
   */
  grantsFor(tree: {
    root: string;
    workspace: string;
    agent: string;
  }): Promise<{ grants: Grant[]; rulesVersion: number; asksVersion: number }>;
  /** Before a grant of a wider scope is relied on: adds the tree to its users. False if the grant is dead. */
  adoptGrant(root: string, grantId: string): Promise<boolean>;
  getGrant(id: string): Promise<Grant | undefined>;
  /** Newest first; `root` limits to those that may serve that tree, `before` is the id of the last one seen. */
  listGrants(filter: {
    tree?: { root: string; workspace: string };
    includeDead: boolean;
    before?: string;
    limit: number;
  }): Promise<Grant[]>;
  /** The audit of a tree, oldest first. */
  listDecisions(page: { root: string; afterSeq: number; limit: number }): Promise<AuditEntry[]>;
  /** The roots of trees that are gone and of whose audit something is kept, newest first; `before` is the last one seen. */
  listAudits(page: { before?: string; limit: number }): Promise<string[]>;
  /** revoke_grant: marks it dead and raises the rules version of every tree that uses it, then resolves: no call starts on its strength afterwards. */
  revokeGrant(id: string, decisions?: readonly DecisionRecord[]): Promise<Grant | undefined>;
}
