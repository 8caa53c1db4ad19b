import { create } from "@bufbuild/protobuf";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import { AnswerMethod, type Person } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { type LastSeen, LastSeenSchema, type PersonRecord } from "../../gen/opencode/tool/v1/person_service_pb.ts";
import type { Principal } from "../core/principal.ts";
import type { RecordTable } from "../core/record-table.ts";
import { RequestError } from "../core/request-error.ts";
import {
  type Credential,
  type CredentialRights,
  createdBy,
  endOf,
  hashOfSecret,
  type Issuer,
  newCredential,
  newToken,
  randomText,
  signedInBy,
  signInMs,
} from "./credential.ts";
import { type ConfiguredToken, createKnownCredentials } from "./known-credentials.ts";
import type { People } from "./people.ts";
import { newLocalPerson } from "./person.ts";
import type { PersonRules } from "./person-rules.ts";
import type { CredentialTable } from "./ports.ts";

/** A new credential, and the only copy of its secret. */
export interface IssuedCredential {
  token: string;
  credential: Credential;
}

/** A sign-in with a code. */
interface SignInRequest extends Pick<Credential, "label" | "uid"> {
  code: string;
  token?: string;
  /** The name of a new person, unless the code names one. */
  name?: string | undefined;
}

/** The credentials of the table, and the codes with which people get one. */
export type Credentials = ReturnType<typeof createCredentials>;

/** Creates the credentials over their tables and the configured tokens; `now` is ms since the epoch. */
export function createCredentials({
  table,
  people,
  lastSeen,
  now,
  configured = () => noTokens,
  rules = () => noRules,
}: {
  table: CredentialTable;
  people: People;
  lastSeen: RecordTable<LastSeen>;
  now: () => number;
  configured?: () => readonly ConfiguredToken[];
  rules?: () => PersonRules;
}) {
  const codes = createSignInCodes(now);
  const failures = createFailureCount(now);
  const known = createKnownCredentials({ table, people, configured, rules, now });
  const storedLastSeen = (id: string) => lastSeen.current().find((each) => each.id === id)?.time ?? 0;

  /** Stores the times of requests that are much later than the stored ones, so that a credential seldom costs a write. */
  async function storeLastSeen(): Promise<void> {
    const ids = new Set(table.current().map(({ id }) => id));
    for (const [id, time] of known.seen())
      if (ids.has(id) && time >= storedLastSeen(id) + seenMs) await lastSeen.put(create(LastSeenSchema, { id, time }));
  }

  return {
    ...known,
    /** Returns the time of the store, in ms. */
    now,
    /** Creates a code for another device of a person; without a creator it makes a new person with the role approver. */
    createCode(creator?: Principal): { code: string; expires: number } {
      if (creator === undefined) return codes.create(approverRights);
      const { roles, agents, workspaces, id, lineage, identity } = creator;
      const own = table.current().find((credential) => credential.id === id);
      return codes.create({
        roles: [...roles],
        agents,
        workspaces,
        endsAt: own ? endOf(own) : Number.POSITIVE_INFINITY,
        isDeviceFlow: own?.isDeviceFlow,
        // An admin could invite a person as well.
        isOfToken: identity?.method === AnswerMethod.TOKEN && !roles.has("admin"),
        issuer: { id, lineage },
        endsWithIssuer: known.principalWithId(id) !== undefined,
        person: identity?.person,
      });
    },
    /** Creates a code that makes a new person with the role approver; without a name the sign-in gives it. */
    async invite(creator: Principal, name: string): Promise<{ code: string; expires: number }> {
      const code = codes.create({ ...approverRights, name, invitedBy: creator.id });
      await people.noteInvited(creator, name);
      return code;
    },
    /**
     * Exchanges a code for a credential of 30 days. `token` is made by the caller if the token has a special form; `uid` is the user
     * of the operating system that signs in.
     */
    async signIn({ code, label, uid, name = "", token = newToken() }: SignInRequest): Promise<IssuedCredential> {
      const rights = codes.take(code);
      const owner = rights?.person;
      // A code ends with the sign-in that made it.
      const isEnded = rights?.endsWithIssuer && known.principalWithId(rights.issuer?.id ?? "") === undefined;
      if (rights === undefined || isEnded || (owner && people.find(owner.id)?.revoked)) throw failures.next();
      const person = owner ?? newLocalPerson((rights.name || name).trim());
      const created = now();
      const expires = Math.min(created + signInMs, rights.endsAt);
      const made = newCredential(token, rights, { label, expires, created });
      const credential = {
        ...signedInBy(rights.issuer, person.id, made),
        ...(rights.isDeviceFlow && { isDeviceFlow: true }),
        ...(rights.isOfToken && { isOfToken: true }),
        ...(uid !== undefined && { uid }),
      };
      try {
        await people.add(person, rights.invitedBy ?? "");
        await table.add(credential);
      } catch (error) {
        codes.giveBack(code);
        if (owner === undefined) await people.remove(person.id).catch(() => undefined);
        throw error;
      }
      if (owner === undefined)
        await people.noteFirst({ id: credential.id, identity: { person, method: AnswerMethod.SESSION } }, person);
      return { token, credential };
    },
    /** Creates a credential on behalf of a principal. */
    async create(
      creator: Principal,
      rights: CredentialRights,
      fields: Pick<Credential, "label" | "expires">,
    ): Promise<IssuedCredential> {
      const token = newToken();
      const credential = createdBy(creator, newCredential(token, rights, { ...fields, created: now() }));
      await table.add(credential);
      return { token, credential };
    },
    list: (): readonly Credential[] => table.current(),
    /** Revokes a credential, and ends the streams of its principal. */
    async revoke(id: string): Promise<Credential> {
      const revoked = await table.revoke(id, now());
      if (revoked === undefined) throw noSuchCredential(id);
      known.endInvalid();
      return revoked;
    },
    /** Revokes a person, and all its sign-ins. */
    async revokePerson(by: Principal, id: string): Promise<PersonRecord> {
      const record = await people.revoke(by, id);
      const own = table.current().filter(({ personId, revoked }) => personId === id && revoked === 0);
      for (const credential of own) await table.revoke(credential.id, now());
      known.endInvalid();
      return record;
    },
    /** Returns the time of the last request with a credential; 0 if it is not known. */
    lastSeen: (id: string): number => Math.max(storedLastSeen(id), known.seen().get(id) ?? 0),
    /** Reads changes of other processes, ends what has expired, and removes what ended long ago. */
    async refresh(): Promise<void> {
      await Promise.all([table.refresh(), people.refresh(), lastSeen.refresh()]);
      known.endInvalid();
      const old = table.current().filter((credential) => endOf(credential) + memoryMs <= now());
      if (old.length > 0) await table.remove(old.map(({ id }) => id));
      for (const { id } of old) await lastSeen.remove(id);
      await storeLastSeen();
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
        "the code is unknown, used or older than 10 minutes, or the sign-in that made it has ended; get a new one from a signed-in browser (Add a device), `toolgate login --new-code`, or the terminal of `toolgate serve` after a restart",
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
const noRules: PersonRules = { oidc: [], groups: [] };
/** Time for which an ended credential stays in the table, so that people see what it was. */
const memoryMs = signInMs;
/** Pause between two stored times of requests with one credential. */
const seenMs = 300_000;
const maxFailures = 10;
const failureWindowMs = 60_000;

/** Rights that a code gives, and the latest end of the credential. */
interface CodeRights extends CredentialRights {
  /** End of the credential that created the code; Infinity if there is none. */
  readonly endsAt: number;
  /** True if its creator signed in by device flow. */
  readonly isDeviceFlow?: boolean | undefined;
  /** True if its creator is a token without the role admin, or a sign-in with the code of one. */
  readonly isOfToken?: boolean | undefined;
  /** Creator of the code; absent for a code of the service itself. */
  readonly issuer?: Issuer | undefined;
  /** True if the issuer is a credential, whose end ends the code. */
  readonly endsWithIssuer?: boolean;
  /** The person who gets another device; absent if the code makes a new person. */
  readonly person?: Person | undefined;
  /** The name that a new person gets; empty if the sign-in gives it. */
  readonly name?: string | undefined;
  /** The principal that invited a new person. */
  readonly invitedBy?: string | undefined;
}

/** Time for which a code is valid. */
export const codeMs = 600_000;

/** Creates one-time sign-in codes. Only their hashes are in memory, and nowhere else. `now` is ms since the epoch. */
export function createSignInCodes(now: () => number) {
  const codes = new Map<string, { rights: CodeRights; expires: number; isTaken: boolean }>();

  function dropExpired(): void {
    for (const [hash, { expires }] of codes) if (expires <= now()) codes.delete(hash);
  }

  function find(code: string) {
    dropExpired();
    return codes.get(hashOfCode(code));
  }

  return {
    /** Creates a code, and returns it with the time from which it is refused. */
    create(rights: CodeRights): { code: string; expires: number } {
      dropExpired();
      const [oldest] = codes.keys();
      if (codes.size >= maxCodes && oldest !== undefined) codes.delete(oldest);
      const code = randomText(16).replaceAll(/(.{4})(?=.)/g, "$1-");
      const expires = now() + codeMs;
      codes.set(hashOfCode(code), { rights, expires, isTaken: false });
      return { code, expires };
    },
    /** Takes a code: returns its rights once, afterwards undefined. */
    take(code: string): CodeRights | undefined {
      const found = find(code);
      if (found === undefined || found.isTaken) return undefined;
      found.isTaken = true;
      return found.rights;
    },
    /** Makes a code that was taken valid again, until the time at which it expires: its credential could not be stored. */
    giveBack(code: string): void {
      const found = find(code);
      if (found) found.isTaken = false;
    },
  };
}

/** Hashes a code as people may type it. The lookup compares hashes, so its time reveals nothing about a code. */
const hashOfCode = (code: string) => hashOfSecret(code.toLowerCase().replaceAll(/[\s-]/g, ""));

const maxCodes = 100;
