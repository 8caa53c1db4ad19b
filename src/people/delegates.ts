import { create } from "@bufbuild/protobuf";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import { AnswerMethod, type Person, type Vote } from "../../gen/opencode/tool/v1/permission_pb.ts";
import {
  type Delegate,
  DelegateSchema,
  type PersonRecord,
  type PutDelegateRequest,
} from "../../gen/opencode/tool/v1/person_service_pb.ts";
import { isFreshSignIn, type Principal } from "../core/principal.ts";
import type { RecordTable } from "../core/record-table.ts";
import { RequestError } from "../core/request-error.ts";
import { wildcard } from "../policy/wildcard.ts";
import type { KnownCredentials } from "./known-credentials.ts";
import { type Actor, noSuchPerson, type People } from "./people.ts";
import { personWords } from "./person.ts";

/** Persons who answer in the place of others for a time. */
export type Delegates = ReturnType<typeof createDelegates>;

const maxDelegationMs = 30 * 86_400_000;
/** Time by which the clock of a client may be ahead. */
const maxAheadMs = 5 * 60_000;

/** Creates the delegates over their table, in which a person has one at most: so one vote at most counts in their place. */
export function createDelegates({
  table,
  people,
  groupsNow,
  now,
}: {
  table: Omit<RecordTable<Delegate>, "update">;
  people: Pick<People, "find" | "noteAbout">;
  groupsNow: KnownCredentials["groupsNow"];
  now: () => number;
}) {
  const lasts = ({ until }: Delegate) => until > now();
  const of = (id: string) => table.current().find((each) => each.id === id && lasts(each));

  function known(id: string): PersonRecord & { person: Person } {
    const record = people.find(id);
    if (record?.person === undefined || record.revoked > 0) throw noSuchPerson(id);
    return { ...record, person: record.person };
  }

  return {
    of,
    refresh: table.refresh,
    /** Names the delegate of a person; returns the person. */
    async put(
      by: Pick<Principal, "id" | "identity" | "freshUntil">,
      { personId, to, until, permissions }: PutDelegateRequest,
    ): Promise<PersonRecord> {
      if (by.identity?.method !== AnswerMethod.SESSION) throw signInNeeded();
      const [record, delegate] = [known(personId), known(to)];
      if (to === personId) throw invalid("to", "a person answers for themselves already; name another one");
      if (to === by.identity.person.id) throw ownDelegate(personId);
      const created = now();
      const end = Math.min(until, created + maxDelegationMs);
      if (!(until > created && until <= end + maxAheadMs))
        throw invalid("until", "a delegate answers until a time that is to come, at most 30 days from now");
      const method = isFreshSignIn(by, now()) ? AnswerMethod.FRESH_SESSION : AnswerMethod.SESSION;
      await table.put(create(DelegateSchema, { id: personId, to, until: end, permissions, created, method }));
      const limits = permissions.length === 0 ? "" : `, for ${permissions.join(", ")}`;
      await people.noteAbout(
        by,
        record.person,
        `${personWords(delegate.person)} answers for them until ${new Date(end).toISOString()}${limits}`,
      );
      return record;
    },
    /** Ends the delegation of a person; returns the person. */
    async remove(by: Actor, personId: string): Promise<PersonRecord> {
      const record = people.find(personId);
      if (record?.person === undefined) throw noSuchPerson(personId);
      if (await table.remove(personId)) await people.noteAbout(by, record.person, "no one answers for them any more");
      return record;
    },
    /**
     * Returns the groups of a person now; undefined for one who was revoked. With a vote: those for which that vote counts in the
     * person's place. A delegation that is later than the vote may be another one.
     */
    groupsNow(person: Person, vote?: Partial<Pick<Vote, "person" | "time">>): readonly string[] | undefined {
      if (vote === undefined) return groupsNow(person);
      const delegate = of(person.id);
      const counts = delegate?.to === vote.person?.id && (delegate?.created ?? 0) <= (vote.time ?? 0);
      return delegate && counts ? groupsNow(person) : undefined;
    },
    /** Returns those in whose place a person answers a request now, with their groups. Whom they answer for is not asked. */
    delegatorsOf(to: string, permission: string, method: AnswerMethod): Person[] {
      return table.current().flatMap((each) => {
        const isLimited = each.permissions.length > 0 && !each.permissions.some((name) => wildcard(permission, name));
        const person = people.find(each.id)?.person;
        const isWeak = Math.min(method, AnswerMethod.FRESH_SESSION) > each.method;
        if (each.to !== to || !lasts(each) || isLimited || isWeak || person === undefined) return [];
        return [{ ...person, groups: [...(groupsNow(person) ?? [])] }];
      });
    },
  };
}

const invalid = (field: string, fact: string) => new RequestError(ErrorReason.INVALID_MESSAGE, fact, { field });

function signInNeeded(): RequestError {
  return new RequestError(
    ErrorReason.METHOD_TOO_WEAK,
    "a delegate is named by a person: sign in with `toolgate login` or in the console, not with a token",
  );
}

function ownDelegate(personId: string): RequestError {
  return new RequestError(
    ErrorReason.NOT_ELIGIBLE,
    "you would answer in the place of another person by your own word: they, or another admin, have to name you",
    { person_id: personId },
  );
}
