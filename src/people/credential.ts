import { createHash, randomBytes, randomInt } from "node:crypto";
import { AnswerMethod } from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { Principal, Role, WorkerRights } from "../core/principal.ts";

/** Rights of a credential. */
export interface CredentialRights {
  readonly roles: readonly Role[];
  /** The agents as which it may act; `*` means all. */
  readonly agents: readonly string[];
  /** The workspace roots in which it may act; `*` means all. */
  readonly workspaces: readonly string[];
  /** Set for the role worker, and only for that. */
  readonly worker?: WorkerRights | undefined;
}

/** A record of the table of credentials. Times are in ms since the epoch. */
export interface Credential extends CredentialRights {
  /** The principal of requests with this credential. */
  readonly id: string;
  /** SHA-256 of the token, hex. */
  readonly sha256: string;
  readonly label: string;
  readonly created: number;
  /** 0: it does not expire. */
  readonly expires: number;
  /** 0: it is not revoked. */
  readonly revoked: number;
  /** The principal that created it, or the code of the sign-in; absent if the operator or the service did. */
  readonly issuer?: string | undefined;
  /** See `Principal`; absent for a credential without issuer. */
  readonly lineage?: Principal["lineage"] | undefined;
  /** The person whose sign-in it is; absent for a token. */
  readonly personId?: string | undefined;
  /** The session at the identity provider, of which the provider can log it out. */
  readonly sid?: string | undefined;
  /** True for a sign-in with a code that was entered elsewhere, and for devices that it added. */
  readonly isDeviceFlow?: boolean | undefined;
  /** True for a sign-in with the code of a token that is no admin, and for devices that it added: it proves no more than the token. */
  readonly isOfToken?: boolean | undefined;
  /** The user of the operating system that signed in; absent if it is unknown or on another machine. */
  readonly uid?: number | undefined;
}

/** Roles that act in a workspace. The other ones read all sessions, so workspaces do not limit them. */
export const actingRoles: ReadonlySet<Role> = new Set<Role>(["caller", "host", "worker"]);

/** Returns the end of a credential; Infinity if there is none. */
export function endOf({ expires, revoked }: Pick<Credential, "expires" | "revoked">): number {
  return Math.min(expires || Number.POSITIVE_INFINITY, revoked || Number.POSITIVE_INFINITY);
}

/** Creates a random token with 256 bits; the prefix lets scanners find it. */
export function newToken(): string {
  return `tg_${randomBytes(32).toString("base64url")}`;
}

/** Returns the hash under which a secret is stored. */
export function hashOfSecret(secret: string): string {
  return createHash("sha256").update(secret).digest("hex");
}

/** Creates the record of a token, without issuer. Its id is the label in the form of a name, and random characters. */
export function newCredential(
  token: string,
  { roles, agents, workspaces, worker }: CredentialRights,
  { label, created, expires }: Pick<Credential, "label" | "created" | "expires">,
): Credential {
  const name = label
    .toLowerCase()
    .replaceAll(/[^a-z0-9]+/g, "-")
    .slice(0, 40)
    .replaceAll(/^-|-$/g, "");
  const id = `${name === "" ? (roles[0] ?? "token") : name}-${randomText(8)}`;
  const rights = { roles, agents, workspaces, ...(worker && { worker }) };
  return { id, ...rights, sha256: hashOfSecret(token), label, created, expires, revoked: 0 };
}

/** The creator of a credential or of a code. */
export type Issuer = Pick<Principal, "id" | "lineage">;

/** Returns a new credential as created by an issuer: a separate person that descends from the issuer's. */
export function createdBy({ id: issuer, lineage }: Issuer, credential: Credential): Credential {
  return { ...credential, issuer, lineage: [credential.id, ...lineage] };
}

/** Returns a new credential as a sign-in of a person: another device of the code's issuer, or the first one of a new person. */
export function signedInBy(issuer: Issuer | undefined, personId: string, credential: Credential): Credential {
  if (issuer === undefined) return { ...credential, personId, lineage: [personId] };
  return { ...credential, personId, issuer: issuer.id, lineage: issuer.lineage };
}

/** Time for which a sign-in is valid. */
export const signInMs = 30 * 86_400_000;

/** Returns the record of an existing token, for a table that takes it over. */
export function credentialOf(
  id: string,
  token: string,
  rights: CredentialRights,
  fields: Pick<Credential, "label" | "created">,
): Credential {
  return { id, ...rights, ...fields, sha256: hashOfSecret(token), expires: 0, revoked: 0 };
}

/** Returns the record of a credential as the contract has it. */
export function recordOf(credential: Credential, lastSeen = 0) {
  const { id, roles, agents, workspaces, worker, label, created, expires, revoked, issuer = "", uid } = credential;
  const { personId = "", isOfToken } = credential;
  return {
    ...{ personId, method: personId === "" || isOfToken ? AnswerMethod.TOKEN : AnswerMethod.SESSION, lastSeen },
    id,
    roles: [...roles],
    agents: [...agents],
    workspaces: [...workspaces],
    label,
    created,
    expires,
    revoked,
    issuer,
    ...(worker && { worker: workerRights(worker) }),
    ...(uid !== undefined && { uid }),
  };
}

/** Copies the limits of a worker. */
export const workerRights = ({ tools, permissions, calls, idempotent, pin }: WorkerRights) => ({
  ...{ tools: [...tools], permissions: [...permissions], calls: [...calls], idempotent, pin: [...pin] },
});

/** Returns random characters of 5 bits each, without those that look alike. */
export function randomText(length: number): string {
  return Array.from({ length }, () => alphabet[randomInt(alphabet.length)]).join("");
}

const alphabet = "0123456789abcdefghjkmnpqrstvwxyz";
