import type { AnswerMethod, Person } from "../../gen/opencode/tool/v1/permission_pb.ts";

/** A role of a token: what its principal may do. */
export type Role = "caller" | "approver" | "watcher" | "admin" | "host" | "worker" | "relay";

/** All roles. */
export const roleNames = [
  "caller",
  "approver",
  "watcher",
  "admin",
  "host",
  "worker",
  "relay",
] as const satisfies readonly Role[];

/** Limits of a token with the role worker. */
export interface WorkerRights {
  /** Names of the tools that its processes may bring; `*` matches any run of characters. */
  readonly tools: readonly string[];
  /** Permissions that these tools may ask in addition to their own names; `*` matches any run of characters. */
  readonly permissions: readonly string[];
  /** Names of the tools that their bodies may call. */
  readonly calls: readonly string[];
  /** True if a tool may declare that it can be run again after its worker was lost. */
  readonly idempotent: boolean;
  /** The definition IDs that are served; empty: any. */
  readonly pin: readonly string[];
}

/** The person who answers, and the method by which they proved it. */
export interface Identity {
  readonly person: Person;
  readonly method: AnswerMethod;
  /** Name of the channel where that person answers; absent for every method but RELAY and CHANNEL. */
  readonly channel?: string;
}

/** The principal of a request, derived from its token and never from its content. */
export interface Principal {
  /** The ID of the token. */
  id: string;
  roles: ReadonlySet<Role>;
  /** The agents as which it may act; `*` means all. */
  agents: readonly string[];
  /** The workspace roots in which it may act; `*` means all. */
  workspaces: readonly string[];
  /**
   * The person of this principal, then the persons from whom its credential descends. A sign-in by code belongs to the person who
   * created the code; every other credential is a separate person, and descends from the person who created it.
   */
  lineage: readonly [person: string, ...ancestors: string[]];
  /** The person who answers with this token; absent for principals that never answer. */
  identity?: Identity;
  /** Time until which its sign-in is fresh, in ms; absent for what is no sign-in, or was made with a code of another one. */
  freshUntil?: number;
  /** The person behind the agents that call with this token; absent if none is known. It is shown, and decides nothing. */
  behind?: Person | undefined;
  /** True without authentication: then all clients are one principal, which has to answer its own asks. */
  answersOwn: boolean;
  /**
   * The user of the operating system that sent the request. Set only where answers need another user than the call, for requests
   * from this machine; `hidden` if the user cannot be seen.
   */
  user?: number | "hidden";
  /** The only session in which it may act, for the agent of one run; absent: all sessions that it owns. */
  session?: string;
  /** Set for the role worker. */
  worker?: WorkerRights;
  /** Aborted when the credential is revoked, expires, or a reload removes or changes it; absent without authentication. */
  ended?: AbortSignal;
}

/** Checks if the sign-in of a principal is fresh at a time, in ms. */
export function isFreshSignIn({ freshUntil = 0 }: Pick<Principal, "freshUntil">, time: number): boolean {
  return time < freshUntil;
}
