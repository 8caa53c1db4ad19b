import { isDeepStrictEqual } from "node:util";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import type { Principal } from "../core/principal.ts";
import { RequestError } from "../core/request-error.ts";

/** Tokens that were verified once, by their SHA-256 in hex. They are in memory only. */
export type Proofs = ReturnType<typeof createProofs>;

/** A token that was verified. */
interface Verified {
  principal: Principal;
  expires: number;
  ending: AbortController;
}

/** Creates an empty set of tokens, which are valid while the rules are those by which they were verified. */
export function createProofs(rules: () => unknown, now: () => number) {
  const known = new Map<string, Verified>();
  let inForce = rules();

  function end(sha256: string, { ending }: Verified): void {
    known.delete(sha256);
    ending.abort(expired());
  }

  return {
    has: (sha256: string): boolean => known.has(sha256),
    /** Accepts a token until a time, in ms since the epoch. If there are too many, the oldest of its issuer ends, else the oldest. */
    add(sha256: string, principal: Omit<Principal, "ended">, expires: number): void {
      if (known.size >= maxKnown) {
        const entries = [...known];
        const issuerOf = ({ identity }: Pick<Principal, "identity">) => identity?.person.issuer;
        const own = entries.find(([, each]) => issuerOf(each.principal) === issuerOf(principal));
        const replaced = own ?? entries[0];
        if (replaced !== undefined) end(...replaced);
      }
      const ending = new AbortController();
      known.set(sha256, { principal: { ...principal, ended: ending.signal }, expires, ending });
    },
    /** Returns the principal of a token that was verified. */
    principalOf(sha256: Buffer): Principal | undefined {
      const found = known.get(sha256.toString("hex"));
      return found !== undefined && rules() === inForce && found.expires > now() ? found.principal : undefined;
    },
    principalWithId: (id: string): Principal | undefined =>
      [...known.values()].find(({ principal, expires }) => principal.id === id && expires > now())?.principal,
    /** Ends the streams of tokens that have expired, and those of all tokens if the rules are others. */
    endInvalid(): void {
      const changed = rules() !== inForce && !isDeepStrictEqual(rules(), inForce);
      inForce = rules();
      for (const [sha256, verified] of known) if (changed || verified.expires <= now()) end(sha256, verified);
    },
  };
}

function expired(): RequestError {
  return new RequestError(
    ErrorReason.UNAUTHENTICATED,
    "the token or certificate has expired, or the configuration accepts it no longer; get a new one from its issuer",
  );
}

const maxKnown = 10_000;
