import type { EnforcementCheck } from "../../agents/connect/enforcement.ts";
import type { Principal } from "../../core/principal.ts";
import type { EdgeContext } from "./edge-context.ts";

/** Domain that finds out who sends a request. */
export interface SenderDomain {
  enforcement: EnforcementCheck;
}

/** Returns the principal of a call, with its user where answers need another one. */
export async function callerOf({ enforcement }: SenderDomain, { principal, peer }: EdgeContext): Promise<Principal> {
  return enforcement.requiresOtherUser ? enforcement.identify(principal, await peer()) : principal;
}

/** Returns the principal of a request that only approvers send, and remembers its user. */
export async function approverOf({ enforcement }: SenderDomain, { principal, peer }: EdgeContext): Promise<Principal> {
  return enforcement.identify(principal, await peer());
}
