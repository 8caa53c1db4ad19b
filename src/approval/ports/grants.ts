import type { DecisionRecord, Grant } from "../../../gen/opencode/tool/v1/permission_pb.ts";

/** Grants, which a settlement saves. */
export interface GrantStore {
  /**
   * Reads the live grants that may serve a tree: its own, and those of its workspace and agent; and the tree's versions. The
   * rules version is raised whenever a grant that the tree may use is saved or revoked, the asks version whenever an ask is
   * opened.
   */
  grantsFor(tree: {
    root: string;
    workspace: string;
    agent: string;
  }): Promise<{ grants: Grant[]; rulesVersion: number; asksVersion: number }>;
  /** Adds the tree to the users of a grant of a wider scope, before relying on it. Returns false if the grant is dead or suspended. */
  adoptGrant(root: string, grantId: string): Promise<boolean>;
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
  /** Includes revoked and expired ones. */
  includeDead: boolean;
  before?: string;
  limit: number;
}
