export type Role = "caller" | "approver" | "watcher" | "admin";

/** Who a request comes from: what its token says, never what the request says. */
export interface Principal {
  /** The token's id. */
  id: string;
  roles: ReadonlySet<Role>;
  /** The agents it may act as; `*` is all. */
  agents: readonly string[];
  /** With authentication off everybody is one principal, and the rule that nobody answers their own ask cannot hold. */
  answersOwn: boolean;
}
