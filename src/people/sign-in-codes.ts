import type { Person } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { type CredentialRights, hashOfSecret, type Issuer, randomText } from "./credential.ts";

/** Rights that a code gives, and the latest end of the credential. */
export interface CodeRights extends CredentialRights {
  /** End of the credential that created the code; Infinity if there is none. */
  readonly endsAt: number;
  /** Creator of the code; absent for a code of the service itself. */
  readonly issuer?: Issuer | undefined;
  /** The person who gets another device; absent if the code makes a new person. */
  readonly person?: Person | undefined;
  /** The name that a new person gets; empty if the sign-in gives it. */
  readonly name?: string | undefined;
  /** The principal that invited a new person. */
  readonly invitedBy?: string | undefined;
}

/** One-time sign-in codes. Only their hashes are in memory, and nowhere else. */
export interface SignInCodes {
  /** Creates a code, and returns it with the time from which it is refused. */
  create(rights: CodeRights): { code: string; expires: number };
  /** Takes a code: returns its rights once, afterwards undefined. */
  take(code: string): CodeRights | undefined;
  /** Makes a code that was taken valid again, until the time at which it expires: its credential could not be stored. */
  giveBack(code: string): void;
}

/** Time for which a code is valid. */
export const codeMs = 600_000;

/** Creates the codes; `now` is ms since the epoch. */
export function createSignInCodes(now: () => number): SignInCodes {
  const codes = new Map<string, { rights: CodeRights; expires: number; isTaken: boolean }>();

  function dropExpired(): void {
    for (const [hash, { expires }] of codes) if (expires <= now()) codes.delete(hash);
  }

  function find(code: string) {
    dropExpired();
    return codes.get(hashOfCode(code));
  }

  return {
    create(rights) {
      dropExpired();
      const [oldest] = codes.keys();
      if (codes.size >= maxCodes && oldest !== undefined) codes.delete(oldest);
      const code = randomText(16).replaceAll(/(.{4})(?=.)/g, "$1-");
      const expires = now() + codeMs;
      codes.set(hashOfCode(code), { rights, expires, isTaken: false });
      return { code, expires };
    },
    take(code) {
      const found = find(code);
      if (found === undefined || found.isTaken) return undefined;
      found.isTaken = true;
      return found.rights;
    },
    giveBack(code) {
      const found = find(code);
      if (found) found.isTaken = false;
    },
  };
}

/** Hashes a code as people may type it. The lookup compares hashes, so its time reveals nothing about a code. */
const hashOfCode = (code: string) => hashOfSecret(code.toLowerCase().replaceAll(/[\s-]/g, ""));

const maxCodes = 100;
