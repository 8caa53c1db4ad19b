import { hash } from "node:crypto";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import type { Principal } from "../core/principal.ts";
import { RequestError } from "../core/request-error.ts";
import { newToken } from "./credential.ts";

/** Tokens of agents that this service started, each for one run. They are in memory only, and end with the process. */
export interface RunTokens {
  /** Creates a token for a principal that is bound to one session, and returns the function that revokes it. */
  issue(principal: Principal & Required<Pick<Principal, "session">>): { token: string; revoke(): void };
  /** Returns the principal whose token has this SHA-256. */
  principalOf(sha256: Buffer): Principal | undefined;
}

/** Creates a table without tokens. */
export function createRunTokens(): RunTokens {
  const principals = new Map<string, Principal>();
  return {
    issue(principal) {
      const token = newToken();
      const sha256 = hash("sha256", token, "hex");
      const ending = new AbortController();
      principals.set(sha256, { ...principal, ended: ending.signal });
      return {
        token,
        revoke() {
          principals.delete(sha256);
          ending.abort(runEnded());
        },
      };
    },
    // A lookup by hash reveals by its time nothing about a token.
    principalOf: (sha256) => principals.get(sha256.toString("hex")),
  };
}

function runEnded(): RequestError {
  return new RequestError(
    ErrorReason.UNAUTHENTICATED,
    "the run of the agent that this token was made for has ended; nothing more can be called with it",
  );
}
