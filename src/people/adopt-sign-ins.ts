import type { Person } from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { Credential } from "./credential.ts";
import { signInMs } from "./credential.ts";
import { localIssuer, personOf } from "./person.ts";
import type { CredentialTable } from "./ports.ts";

/** A table in which the sign-ins of versions without persons belong to persons, too. */
export interface AdoptedTable extends CredentialTable {
  /** The persons of these sign-ins, each with the time of the first one. */
  adopted(): ReadonlyMap<string, { person: Person; created: number }>;
}

/**
 * Gives each sign-in of an earlier version a person, whose subject is the first principal of its lineage. The lineage stays as it is,
 * so that the person still answers no request that it made before the upgrade, nor one that another device of it makes.
 */
export function adoptSignIns(table: CredentialTable): AdoptedTable {
  let stored: readonly Credential[] | undefined;
  let read = adoptAll([]);
  function adoptedNow(): typeof read {
    const found = table.current();
    if (found !== stored) [stored, read] = [found, adoptAll(found)];
    return read;
  }
  const current = () => adoptedNow().credentials;
  return {
    ...table,
    current,
    adopted: () => adoptedNow().people,
    async revoke(id, time) {
      const revoked = await table.revoke(id, time);
      return revoked && (current().find((credential) => credential.id === id) ?? revoked);
    },
  };
}

function adoptAll(stored: readonly Credential[]) {
  const people = new Map<string, { person: Person; created: number }>();
  for (const credential of stored.filter(isEarlierSignIn).toSorted((one, other) => one.created - other.created)) {
    const [subject] = lineageOf(credential);
    if (!people.has(subject))
      people.set(subject, { person: personOf(localIssuer, subject, credential.label), created: credential.created });
  }
  if (people.size === 0) return { credentials: stored, people };
  const personIdOf = (credential: Credential) =>
    isEarlierSignIn(credential) ? people.get(lineageOf(credential)[0])?.person.id : credential.personId;
  return { credentials: stored.map((each): Credential => ({ ...each, personId: personIdOf(each) })), people };
}

const lineageOf = ({ id, lineage = [id] }: Credential) => lineage;

/**
 * Recognizes a sign-in that names no person: it belongs to the principal that created its code, or to itself if the service created the
 * code. The latter has what no other credential has: the rights of such a code, and exactly its time.
 */
function isEarlierSignIn(credential: Credential): boolean {
  const { id, personId, issuer, roles, agents, workspaces, created, expires } = credential;
  if (personId !== undefined) return false;
  if (issuer !== undefined) return lineageOf(credential)[0] !== id;
  const hasRights = roles.join() === "approver" && agents.join() === "*" && workspaces.join() === "*";
  return hasRights && expires - created === signInMs;
}
