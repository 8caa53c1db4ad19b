import { timingSafeEqual } from "node:crypto";
import { isDeepStrictEqual } from "node:util";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import type { Principal } from "../core/principal.ts";
import { RequestError } from "../core/request-error.ts";
import { type Credential, type CredentialRights, endOf } from "./credential.ts";
import type { CredentialTable } from "./ports.ts";

/** Token of the configuration, which a reload may remove or change. */
export interface ConfiguredToken extends CredentialRights {
  /** The principal of requests with this token. */
  readonly id: string;
  /** SHA-256 of the token, hex. */
  readonly sha256: string;
}

/** The secrets that are accepted: the credentials of the table and the tokens of the configuration. */
export interface KnownCredentials {
  /** Returns the principal whose token has this SHA-256; undefined if it is unknown, revoked or expired. */
  principalOf(sha256: Buffer): Principal | undefined;
  /** Returns the principal of a secret that is accepted, by its id; undefined if it is unknown, revoked or expired. */
  principalWithId(id: string): Principal | undefined;
  /** Ends the requests and streams of secrets that are no longer accepted, or that have other rights now. */
  endInvalid(): void;
}

/** Entry of a secret, in the table or in the configuration. */
type SecretRecord = ConfiguredToken & Partial<Pick<Credential, "lineage" | "expires" | "revoked">>;

/** A secret in memory. */
interface KnownSecret {
  record: SecretRecord;
  digest: Buffer;
  principal: Principal;
  ending: AbortController;
}

/** Creates the view of a table and of the configured tokens, which are another array after a reload. */
export function createKnownCredentials(
  table: Pick<CredentialTable, "current">,
  configured: () => readonly ConfiguredToken[],
  now: () => number,
): KnownCredentials {
  let stored: readonly Credential[] = [];
  let tokens: readonly ConfiguredToken[] = [];
  let known = new Map<string, KnownSecret>();

  function endInvalid(): void {
    const [currentStored, currentTokens] = [table.current(), configured()];
    if (currentStored !== stored || currentTokens !== tokens) {
      const before = known;
      const records: SecretRecord[] = [...currentStored, ...currentTokens];
      known = new Map(records.map((record) => [record.sha256, knownOf(record, before.get(record.sha256))]));
      [stored, tokens] = [currentStored, currentTokens];
      for (const [sha256, { ending }] of before)
        if (known.get(sha256)?.ending !== ending) ending.abort(credentialEnded());
    }
    for (const { record, ending } of known.values())
      if (!isValid(record, now()) && !ending.signal.aborted) ending.abort(credentialEnded());
  }

  /** Compares every hash, whichever fits, so that time reveals nothing about a token. */
  function find(sha256: Buffer): KnownSecret | undefined {
    return [...known.values()].filter(({ digest }) => timingSafeEqual(digest, sha256))[0];
  }

  return {
    endInvalid,
    principalWithId(id) {
      endInvalid();
      return [...known.values()].find(({ record }) => record.id === id && isValid(record, now()))?.principal;
    },
    principalOf(sha256) {
      // A configured token needs no look at the table, which costs a system call.
      const quick = configured() === tokens ? find(sha256) : undefined;
      if (quick !== undefined && tokens.includes(quick.record)) return quick.principal;
      endInvalid();
      const found = find(sha256);
      return found !== undefined && isValid(found.record, now()) ? found.principal : undefined;
    },
  };
}

/** Returns a secret in memory; requests of a former record with the same rights go on. */
function knownOf(record: SecretRecord, former: KnownSecret | undefined): KnownSecret {
  const { id, roles, agents, workspaces, worker, sha256, lineage = [id] as const } = record;
  const goesOn =
    former && !former.ending.signal.aborted && isDeepStrictEqual(rightsOf(former.record), rightsOf(record));
  const ending = goesOn ? former.ending : new AbortController();
  const rights = { id, roles: new Set(roles), agents, workspaces, lineage, ...(worker && { worker }) };
  const principal = { ...rights, answersOwn: false, ended: ending.signal };
  return { record, digest: Buffer.from(sha256, "hex"), principal, ending };
}

const rightsOf = ({ id, roles, agents, workspaces, worker }: SecretRecord) => ({
  ...{ id, roles, agents, workspaces, worker },
});

const isValid = ({ expires = 0, revoked = 0 }: SecretRecord, time: number) => endOf({ expires, revoked }) > time;

function credentialEnded(): RequestError {
  return new RequestError(
    ErrorReason.UNAUTHENTICATED,
    "the credential was revoked, has expired, or was removed or changed in the configuration; sign in again, or use a token that is valid now",
  );
}
