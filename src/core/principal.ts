/** A role of a token: what its principal may do. */
export type Role = "caller" | "approver" | "watcher" | "admin";

/** The principal of a request, derived from its token and never from its content. */
export interface Principal {
  /** The ID of the token. */
  id: string;
  roles: ReadonlySet<Role>;
  /** The agents as which it may act; `*` means all. */
  agents: readonly string[];
  /** True without authentication: then all clients are one principal, which has to answer its own asks. */
  answersOwn: boolean;
}
