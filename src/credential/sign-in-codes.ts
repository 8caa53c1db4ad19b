import { type CredentialRights, hashOfSecret, type Issuer, randomText } from "./credential.ts";

/** Rights that a code gives, and the latest end of the credential. */
export interface CodeRights extends CredentialRights {
  /** End of the credential that created the code; Infinity if there is none. */
  readonly endsAt: number;
  /** Creator of the code; absent for a code of the service itself. */
  readonly issuer?: Issuer | undefined;
}

/** One-time sign-in codes. Only their hashes are in memory, and nowhere else. */
export interface SignInCodes {
  /** Creates a code, and returns it with the time from which it is refused. */
  create(rights: CodeRights): { code: string; expires: number };
  /** Takes a code: returns its rights once, afterwards undefined. */
  take(code: string): CodeRights | undefined;
}

/** Time for which a code is valid. */
export const codeMs = 600_000;

/** Creates the codes; `now` is ms since the epoch. */
export function createSignInCodes(now: () => number): SignInCodes {
  const codes = new Map<string, { rights: CodeRights; expires: number }>();

  function dropExpired(): void {
    for (const [hash, { expires }] of codes) if (expires <= now()) codes.delete(hash);
  }

  return {
    create(rights) {
      dropExpired();
      const [oldest] = codes.keys();
      if (codes.size >= maxCodes && oldest !== undefined) codes.delete(oldest);
      const code = randomText(16).replaceAll(/(.{4})(?=.)/g, "$1-");
      const expires = now() + codeMs;
      codes.set(hashOfCode(code), { rights, expires });
      return { code, expires };
    },
    take(code) {
      dropExpired();
      const hash = hashOfCode(code);
      const found = codes.get(hash);
      codes.delete(hash);
      return found?.rights;
    },
  };
}

/** Hashes a code as people may type it. The lookup compares hashes, so its time reveals nothing about a code. */
const hashOfCode = (code: string) => hashOfSecret(code.toLowerCase().replaceAll(/[\s-]/g, ""));

const maxCodes = 100;
