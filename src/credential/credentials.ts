import { timingSafeEqual } from "node:crypto";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import type { Principal } from "../core/principal.ts";
import { RequestError } from "../core/request-error.ts";
import {
  type Credential,
  type CredentialRights,
  createdBy,
  endOf,
  newCredential,
  newToken,
  signedInBy,
} from "./credential.ts";
import type { CredentialTable } from "./ports.ts";
import { type CodeRights, createSignInCodes } from "./sign-in-codes.ts";

/** A new credential, and the only copy of its secret. */
export interface IssuedCredential {
  token: string;
  credential: Credential;
}

/** A sign-in with a code. */
interface SignInRequest extends Pick<Credential, "label" | "uid"> {
  code: string;
  token?: string;
}

/** The credentials of the table, and the codes with which people get one. */
export interface Credentials {
  /** Returns the principal whose token has this SHA-256; undefined if it is unknown, revoked or expired. */
  principalOf(sha256: Buffer): Principal | undefined;
  /** Creates a code for a person; without a creator it gives the role approver. */
  createCode(creator?: Principal): { code: string; expires: number };
  /**
   * Exchanges a code for a credential of 30 days. `token` is made by the caller if the token has a special form; `uid` is the user
   * of the operating system that signs in.
   */
  signIn(request: SignInRequest): Promise<IssuedCredential>;
  /** Creates a credential on behalf of a principal. */
  create(
    creator: Principal,
    rights: CredentialRights,
    fields: Pick<Credential, "label" | "expires">,
  ): Promise<IssuedCredential>;
  list(): readonly Credential[];
  /** Revokes a credential, and ends the streams of its principal. */
  revoke(id: string): Promise<Credential>;
  /** Reads changes of other processes, ends what has expired, and removes what ended long ago. */
  refresh(): Promise<void>;
}

/** A credential in memory. */
interface KnownCredential {
  credential: Credential;
  digest: Buffer;
  principal: Principal;
  ending: AbortController;
}

/** Creates the credentials over a table; `now` is ms since the epoch. */
export function createCredentials(table: CredentialTable, now: () => number): Credentials {
  const codes = createSignInCodes(now);
  const failures = createFailureCount(now);
  let read: readonly Credential[] = [];
  let known = new Map<string, KnownCredential>();

  /** Follows the table: ends what is no longer valid. */
  function follow(): void {
    const current = table.current();
    if (current !== read) {
      const before = known;
      known = new Map(current.map((credential) => [credential.sha256, knownOf(credential, before)]));
      read = current;
      for (const [sha256, { ending }] of before) if (!known.has(sha256)) ending.abort(credentialEnded());
    }
    for (const { credential, ending } of known.values())
      if (endOf(credential) <= now() && !ending.signal.aborted) ending.abort(credentialEnded());
  }

  return {
    principalOf(sha256) {
      follow();
      // Every hash is compared, whichever fits, so that time reveals nothing.
      const [match] = [...known.values()].filter(({ digest }) => timingSafeEqual(digest, sha256));
      return match === undefined || endOf(match.credential) <= now() ? undefined : match.principal;
    },
    createCode(creator) {
      if (creator === undefined) return codes.create(approverRights);
      const { roles, agents, workspaces, id, lineage } = creator;
      const own = table.current().find((credential) => credential.id === id);
      return codes.create({
        roles: [...roles],
        agents,
        workspaces,
        endsAt: own ? endOf(own) : Number.POSITIVE_INFINITY,
        issuer: { id, lineage },
      });
    },
    async signIn({ code, label, uid, token = newToken() }) {
      const rights = codes.take(code);
      if (rights === undefined) throw failures.next();
      const expires = Math.min(now() + signInMs, rights.endsAt);
      const signedIn = signedInBy(rights.issuer, newCredential(token, rights, { label, expires, created: now() }));
      const credential = uid === undefined ? signedIn : { ...signedIn, uid };
      await table.add(credential);
      return { token, credential };
    },
    async create(creator, rights, fields) {
      const token = newToken();
      const credential = createdBy(creator, newCredential(token, rights, { ...fields, created: now() }));
      await table.add(credential);
      return { token, credential };
    },
    list: () => table.current(),
    async revoke(id) {
      const revoked = await table.revoke(id, now());
      if (revoked === undefined) throw noSuchCredential(id);
      follow();
      return revoked;
    },
    async refresh() {
      await table.refresh();
      follow();
      const old = table.current().filter((credential) => endOf(credential) + memoryMs <= now());
      if (old.length > 0) await table.remove(old.map(({ id }) => id));
    },
  };
}

function knownOf(credential: Credential, before: ReadonlyMap<string, KnownCredential>): KnownCredential {
  const { id, roles, agents, workspaces, sha256, lineage = [id] as const } = credential;
  const former = before.get(sha256)?.ending;
  const ending = former === undefined || former.signal.aborted ? new AbortController() : former;
  const rights = { id, roles: new Set(roles), agents, workspaces, lineage };
  const principal = { ...rights, answersOwn: false, ended: ending.signal };
  return { credential, digest: Buffer.from(sha256, "hex"), principal, ending };
}

/** Counts failed sign-ins of the last minute; returns the refusal of the next one. Valid codes are not counted, so that no one can lock a person out. */
function createFailureCount(now: () => number) {
  let times: number[] = [];
  return {
    next(): RequestError {
      times = times.filter((time) => time > now() - failureWindowMs);
      if (times.length >= maxFailures)
        return new RequestError(
          ErrorReason.QUOTA_EXCEEDED,
          `more than ${maxFailures} sign-ins failed within a minute; get a new code, then try again`,
          { limit: "sign_in" },
        );
      times.push(now());
      return new RequestError(
        ErrorReason.UNAUTHENTICATED,
        "the code is unknown, used or older than 10 minutes; get a new one from a signed-in browser (Add a device), `toolgate login --new-code`, or the terminal of `toolgate serve` after a restart",
      );
    },
  };
}

function credentialEnded(): RequestError {
  return new RequestError(ErrorReason.UNAUTHENTICATED, "the credential was revoked or has expired; sign in again");
}

function noSuchCredential(id: string): RequestError {
  return new RequestError(
    ErrorReason.NO_SUCH_CREDENTIAL,
    `there is no credential "${id}"; list them with \`toolgate token list\``,
    { credential_id: id },
  );
}

const approverRights: CodeRights = {
  roles: ["approver"],
  agents: ["*"],
  workspaces: ["*"],
  endsAt: Number.POSITIVE_INFINITY,
};

const dayMs = 86_400_000;
/** Time for which a sign-in is valid. */
const signInMs = 30 * dayMs;
/** Time for which an ended credential stays in the table, so that people see what it was. */
const memoryMs = 30 * dayMs;
const maxFailures = 10;
const failureWindowMs = 60_000;
