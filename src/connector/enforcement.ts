import { create } from "@bufbuild/protobuf";
import { type Enforcement, EnforcementSchema, EnforcementState } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import type { Peer } from "../core/peer-uid.ts";
import type { Principal } from "../core/principal.ts";
import type { Credentials } from "../credential/credentials.ts";

/** Finds out over which users of the operating system approvals hold. */
export interface EnforcementCheck {
  /** True if an answer needs another user than its call. */
  readonly requiresOtherUser: boolean;
  /** Returns the principal with its user, where that counts; remembers the users that can approve. */
  identify(principal: Principal, peer: Peer): Principal;
  /** Judges an agent that runs as this user; undefined if the user is unknown. */
  judge(uid: number | undefined): Enforcement;
}

/** Creates the judgement. `serviceUid` is undefined on systems without user numbers. */
export function createEnforcement({
  serviceUid,
  insecureNoAuth,
  requiresOtherUser,
  credentials,
  unfiltered,
}: {
  serviceUid: number | undefined;
  insecureNoAuth: boolean;
  requiresOtherUser: boolean;
  credentials: Pick<Credentials, "list">;
  /** The reason why some commands run without the filter of system calls; undefined if none does. */
  unfiltered: string | undefined;
}): EnforcementCheck {
  /** Principals that approved, by the user of their connection. */
  const approvers = new Map<number, string>();

  /** Names a credential that can approve and was in the hands of a user. */
  function approverOf(uid: number): string | undefined {
    const issued = credentials.list().find((credential) => credential.uid === uid && credential.roles.some(canApprove));
    return issued?.id ?? approvers.get(uid);
  }

  function problem(uid: number | undefined): string | undefined {
    if (insecureNoAuth) return "the service requires no token, so every program can approve; start it with tokens";
    if (uid === undefined || serviceUid === undefined)
      return "the user of the agent cannot be seen: it is on another machine, or this system does not list it; run agent and service on one Linux machine as different users";
    if (uid === serviceUid)
      return `agent and service run as the same user (${uid}), so the agent can change the service; run the service as its own user: sudo toolgate install`;
    if (uid === 0) return "the agent runs as root, which can do everything; run it as another user";
    if (unfiltered !== undefined)
      return `a command can leave a program that runs as the user of the service, since ${unfiltered}`;
    const approver = approverOf(uid);
    if (approver === undefined) return undefined;
    return `"${approver}" can approve and was in the hands of user ${uid}, where the agent can read it; approve as another user, from another machine or from a phone, and revoke it: toolgate token revoke ${approver}`;
  }

  return {
    requiresOtherUser,
    identify(principal, { isLocal, uid }) {
      if (uid !== undefined && [...principal.roles].some(canApprove)) approvers.set(uid, principal.id);
      return requiresOtherUser && isLocal ? { ...principal, user: uid ?? "hidden" } : principal;
    },
    judge(uid) {
      const reason = problem(uid);
      return reason === undefined ? create(EnforcementSchema, { state: EnforcementState.ENFORCED }) : advisory(reason);
    },
  };
}

/** Returns the result for a reason that makes approvals advisory. */
export function advisory(reason: string): Enforcement {
  return create(EnforcementSchema, { state: EnforcementState.ADVISORY, reason });
}

const canApprove = (role: string) => role === "approver" || role === "admin";
