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
import { type ConfiguredToken, createKnownCredentials, type KnownCredentials } from "./known-credentials.ts";
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
export interface Credentials extends KnownCredentials {
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

/** Creates the credentials over a table and the configured tokens; `now` is ms since the epoch. */
export function createCredentials(
  table: CredentialTable,
  now: () => number,
  configured: () => readonly ConfiguredToken[] = () => noTokens,
): Credentials {
  const codes = createSignInCodes(now);
  const failures = createFailureCount(now);
  const known = createKnownCredentials(table, configured, now);

  return {
    ...known,
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
      await table.add(credential).catch((error: unknown) => {
        codes.giveBack(code);
        throw error;
      });
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
      known.endInvalid();
      return revoked;
    },
    async refresh() {
      await table.refresh();
      known.endInvalid();
      const old = table.current().filter((credential) => endOf(credential) + memoryMs <= now());
      if (old.length > 0) await table.remove(old.map(({ id }) => id));
    },
  };
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

const noTokens: readonly ConfiguredToken[] = [];
const dayMs = 86_400_000;
/** Time for which a sign-in is valid. */
const signInMs = 30 * dayMs;
/** Time for which an ended credential stays in the table, so that people see what it was. */
const memoryMs = 30 * dayMs;
const maxFailures = 10;
const failureWindowMs = 60_000;
