import { hash } from "node:crypto";
import { isDeepStrictEqual } from "node:util";
import { create } from "@bufbuild/protobuf";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import { AnswerMethod, type Person } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { PersonRecordSchema } from "../../gen/opencode/tool/v1/person_service_pb.ts";
import type { Identity, Principal, Role } from "../core/principal.ts";
import { RequestError } from "../core/request-error.ts";
import { type Credential, type CredentialRights, endOf, newToken } from "./credential.ts";
import type { People } from "./people.ts";
import { localIssuer, personOf, tokenIdentity } from "./person.ts";
import { groupsOf, maxClaimMs, type PersonRules, rolesAt, withGroups } from "./person-rules.ts";
import type { CredentialTable } from "./ports.ts";

/** Token of the configuration, which a reload may remove or change. */
export interface ConfiguredToken extends CredentialRights {
  /** The principal of requests with this token. */
  readonly id: string;
  /** SHA-256 of the token, hex. */
  readonly sha256: string;
  /** The person who has it; absent: the token stands for itself. */
  readonly person?: { readonly issuer: string; readonly subject: string } | undefined;
}

/** The secrets that are accepted: the credentials of the table and the tokens of the configuration. */
export type KnownCredentials = ReturnType<typeof createKnownCredentials>;

/** Entry of a secret, in the table or in the configuration. */
type SecretRecord = ConfiguredToken &
  Partial<
    Pick<
      Credential,
      "lineage" | "expires" | "revoked" | "personId" | "isDeviceFlow" | "isOfToken" | "created" | "issuer"
    >
  >;

/** A secret in memory. */
interface KnownSecret {
  record: SecretRecord;
  principal: Principal;
  ending: AbortController;
}

/** Creates the view of the tables and of the configured tokens, which are another array after a reload. */
export function createKnownCredentials({
  table,
  people,
  configured,
  rules,
  now,
}: {
  table: Pick<CredentialTable, "current">;
  people: Pick<People, "current" | "find">;
  configured: () => readonly ConfiguredToken[];
  rules: () => PersonRules;
  now: () => number;
}) {
  const seen = new Map<string, number>();
  let persons: ReturnType<People["current"]> = [];
  let stored: readonly Credential[] = [];
  let tokens: readonly ConfiguredToken[] = [];
  let known = new Map<string, KnownSecret>();
  let byId = new Map<string, KnownSecret[]>();
  let [{ oidc, groups }, groupsEnd] = [rules(), Number.POSITIVE_INFINITY];

  /** Takes over what has changed in the tables and in the configuration. */
  function readChanges(): void {
    const [currentStored, currentTokens, currentPersons] = [table.current(), configured(), people.current()];
    const current = rules();
    const isSame = currentStored === stored && currentTokens === tokens && currentPersons === persons;
    if (isSame && current.oidc === oidc && current.groups === groups && now() < groupsEnd) return;
    const before = known;
    const records: SecretRecord[] = [...currentStored, ...currentTokens];
    const standing = { people, rules: current, time: now() };
    known = new Map(records.map((record) => [record.sha256, knownOf(record, before.get(record.sha256), standing)]));
    byId = Map.groupBy(known.values(), ({ record }) => record.id);
    [stored, tokens, persons] = [currentStored, currentTokens, currentPersons];
    ({ oidc, groups } = current);
    const ends = persons.map(({ claimed }) => claimed + maxClaimMs).filter((end) => end > standing.time);
    groupsEnd = ends.reduce((first, end) => Math.min(first, end), Number.POSITIVE_INFINITY);
    for (const [sha256, { ending }] of before)
      if (known.get(sha256)?.ending !== ending) ending.abort(credentialEnded());
  }

  function endInvalid(): void {
    readChanges();
    for (const secret of known.values())
      if (!isValid(secret) && !secret.ending.signal.aborted) secret.ending.abort(credentialEnded());
  }

  /** Looks a secret up by its hash, which with a thousand people takes as long as with one; its time reveals nothing about a token. */
  const find = (sha256: Buffer) => known.get(sha256.toString("hex"));

  /** Checks a secret at this moment; a sign-in, or a token that names a person, ends with the person. */
  function isValid({ record: { expires = 0, revoked = 0, personId }, principal }: KnownSecret): boolean {
    if (people.find(personId ?? principal.identity?.person.id ?? "")?.revoked) return false;
    return principal.roles.size > 0 && endOf({ expires, revoked }) > now();
  }

  return {
    /** Ends the requests and streams of secrets that are no longer accepted, or that have other rights now. */
    endInvalid,
    /** Returns the times of the last requests by the id of their secret, as far as this process served them. */
    seen: (): ReadonlyMap<string, number> => seen,
    /** Returns the principal of a secret that is accepted, by its id; undefined if it is unknown, revoked or expired. */
    principalWithId(id: string): Principal | undefined {
      readChanges();
      return byId.get(id)?.find(isValid)?.principal;
    },
    /** Returns a person who has a secret that may answer now, with the lineages of all of theirs; undefined if there is none. */
    answererOf(personId: string): { person: Person; lineage: Principal["lineage"] } | undefined {
      readChanges();
      if (people.find(personId) === undefined) return undefined;
      const own = [...known.values()].filter(({ principal }) => principal.identity?.person.id === personId);
      const answering = own.find((secret) => isValid(secret) && mayAnswer(secret));
      const person = answering?.principal.identity?.person;
      return person && { person, lineage: [personId, ...own.flatMap(({ principal }) => principal.lineage)] };
    },
    /** Returns the groups of a person at this moment; undefined for one who was revoked. */
    groupsNow(person: Person): readonly string[] | undefined {
      const record = people.find(person.id) ?? create(PersonRecordSchema, { id: person.id, person });
      return record.revoked > 0 ? undefined : groupsOf(record, rules(), now());
    },
    /** Returns the principal whose token has this SHA-256; undefined if it is unknown, revoked or expired. */
    principalOf(sha256: Buffer): Principal | undefined {
      // A configured token of no person needs no look at the tables, which costs a system call.
      const quick = configured() === tokens ? find(sha256) : undefined;
      if (quick && quick.record.person === undefined && tokens.includes(quick.record)) return quick.principal;
      readChanges();
      const found = find(sha256);
      if (found === undefined || !isValid(found)) return undefined;
      seen.set(found.record.id, now());
      return found.principal;
    },
  };
}

const mayAnswer = ({ principal: { roles } }: KnownSecret) => roles.has("approver") || roles.has("admin");

/** Facts of a moment that decide about roles and groups. */
interface Standing {
  people: Pick<People, "find">;
  rules: PersonRules;
  time: number;
}

/** Returns a secret in memory; requests of a former record with the same rights go on. */
function knownOf(record: SecretRecord, former: KnownSecret | undefined, standing: Standing): KnownSecret {
  const { people } = standing;
  const { id, agents, workspaces, worker, lineage = [id] as const } = record;
  const roles = new Set(rolesOf(record, standing));
  const rights = { id, roles, agents, workspaces, lineage, ...(worker && { worker }) };
  const goesOn =
    former && !former.ending.signal.aborted && isDeepStrictEqual(rightsOf(former.principal), rightsOf(rights));
  const ending = goesOn ? former.ending : new AbortController();
  const identity = identityOf(record, standing);
  const creator = lineage.slice(1).flatMap((ancestor) => personWithin(ancestor, people) ?? [])[0];
  const isOfPerson = record.personId !== undefined || record.person !== undefined;
  const behind = isOfPerson ? identity.person : creator;
  const fresh = isOwnProof(record) ? { freshUntil: (record.created ?? 0) + freshMs } : {};
  const principal = { ...rights, ...fresh, identity, behind, answersOwn: false, ended: ending.signal };
  return { record, principal, ending };
}

/** Time for which a sign-in is fresh. */
const freshMs = 300_000;

/** Checks for a sign-in that no other one of the person, or a stranger with a device code, could make. */
const isOwnProof = ({ personId, issuer, isDeviceFlow }: SecretRecord) =>
  personId !== undefined && issuer === undefined && isDeviceFlow !== true;

/** Returns the roles of a secret. Those of a person of an identity provider follow from its groups now, whichever sign-in or device it is. */
function rolesOf(record: SecretRecord, { people, rules }: Standing): readonly Role[] {
  const { roles, personId, isDeviceFlow, isOfToken } = record;
  if (isOfToken) return roles;
  const { person, claims = [] } = people.find(personId ?? "") ?? {};
  // Other issuers are no addresses: see Person.
  if (!person?.issuer.includes(":")) return roles;
  const provider = rules.oidc.find(({ issuer }) => issuer === person.issuer);
  return provider === undefined ? [] : rolesAt(provider, { subject: person.subject, claims, isDeviceFlow });
}

/** Returns the person of a principal in a lineage; before there were persons it was the first sign-in. */
function personWithin(ancestor: string, people: Pick<People, "find">): Person | undefined {
  return (people.find(ancestor) ?? people.find(personOf(localIssuer, ancestor).id))?.person;
}

function identityOf(
  { id, personId, isOfToken, person: named }: SecretRecord,
  { people, rules, time }: Standing,
): Identity {
  if (personId === undefined) {
    if (named === undefined) return tokenIdentity(id);
    const person = personOf(named.issuer, named.subject);
    const record = people.find(person.id) ?? create(PersonRecordSchema, { id: person.id, person });
    return { person: withGroups(record, rules, time) ?? person, method: AnswerMethod.TOKEN };
  }
  const record = people.find(personId);
  const person = record && withGroups(record, rules, time);
  const method = isOfToken ? AnswerMethod.TOKEN : AnswerMethod.SESSION;
  return { person: person ?? personOf(localIssuer, personId), method };
}

const rightsOf = ({ id, roles, agents, workspaces, worker }: Omit<Principal, "lineage" | "answersOwn">) => ({
  ...{ id, roles, agents, workspaces, worker },
});

function credentialEnded(): RequestError {
  return new RequestError(
    ErrorReason.UNAUTHENTICATED,
    "the credential was revoked, has expired, or was removed or changed in the configuration; sign in again, or use a token that is valid now",
  );
}

/** Tokens of agents that this service started, each for one run. They are in memory only, and end with the process. */
export type RunTokens = ReturnType<typeof createRunTokens>;

/** Creates a table without tokens. */
export function createRunTokens() {
  const principals = new Map<string, Principal>();
  return {
    /** Creates a token for a principal that is bound to one session, and returns the function that revokes it. */
    issue(principal: Principal & Required<Pick<Principal, "session">>): { token: string; revoke(): void } {
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
    /** Returns the principal whose token has this SHA-256. */
    // A lookup by hash reveals by its time nothing about a token.
    principalOf: (sha256: Buffer): Principal | undefined => principals.get(sha256.toString("hex")),
  };
}

function runEnded(): RequestError {
  return new RequestError(
    ErrorReason.UNAUTHENTICATED,
    "the run of the agent that this token was made for has ended; nothing more can be called with it",
  );
}
