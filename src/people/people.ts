import { create } from "@bufbuild/protobuf";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import {
  DecisionKind,
  type DecisionRecord,
  DecisionRecordSchema,
  type Person,
} from "../../gen/opencode/tool/v1/permission_pb.ts";
import { type LastSeen, type PersonRecord, PersonRecordSchema } from "../../gen/opencode/tool/v1/person_service_pb.ts";
import type { Identity } from "../core/principal.ts";
import type { RecordTable } from "../core/record-table.ts";
import { RequestError } from "../core/request-error.ts";
import { personWords } from "./person.ts";

/** Tables of persons, and the audit of the service. */
export interface PeopleStore {
  readonly people: RecordTable<PersonRecord>;
  readonly lastSeen: RecordTable<LastSeen>;
  /** Adds a record to the audit of the service. */
  note(record: DecisionRecord): Promise<void>;
  now(): number;
}

/** The principal that changes something about a person. */
export interface Actor {
  readonly id: string;
  readonly identity?: Identity | undefined;
}

/** The persons of a service. */
export type People = ReturnType<typeof createPeople>;

/** Creates the persons over their table. */
export function createPeople({ people: table, note, now }: Omit<PeopleStore, "lastSeen">) {
  let read: readonly PersonRecord[] = [];
  let byId = new Map<string, PersonRecord>();
  function find(id: string): PersonRecord | undefined {
    const found = table.current();
    if (found !== read) [read, byId] = [found, new Map(found.map((record) => [record.id, record]))];
    return byId.get(id);
  }

  function known(id: string): PersonRecord & { person: Person } {
    const found = find(id);
    if (found?.person === undefined) throw noSuchPerson(id);
    return { ...found, person: found.person };
  }

  async function record(by: Actor, reason: string): Promise<void> {
    const decisions = [{ permission: "people", pattern: "*", reason }];
    await note(create(DecisionRecordSchema, { kind: DecisionKind.PEOPLE, by: by.id, ...by.identity, decisions }));
  }

  return {
    find,
    current: table.current,
    refresh: table.refresh,
    remove: table.remove,
    /** Stores a person that has no record. */
    async add(person: Person, invitedBy: string): Promise<void> {
      if (find(person.id)) return;
      await table.put(create(PersonRecordSchema, { id: person.id, person, created: now(), invitedBy }));
    },
    /** Stores a person with what an identity provider says about them now. */
    async see(person: Person, { claims }: { claims: readonly string[] }): Promise<void> {
      await table.update(person.id, (found = create(PersonRecordSchema, { id: person.id, created: now() })) => {
        const name = person.name || found.person?.name || "";
        return { ...found, person: { ...person, name, groups: [] }, claims: [...claims], claimed: now() };
      });
    },
    /** Notes what happened to a person outside of this table. */
    noteAbout: (by: Actor, person: Person, reason: string) => record(by, `${personWords(person)}: ${reason}`),
    /** Notes that a person was invited. */
    noteInvited: (by: Actor, name: string) => record(by, `${name === "" ? "a new person" : name} was invited`),
    /** Notes the first sign-in of a person. */
    noteFirst: (by: Actor, person: Person) => record(by, `${personWords(person)} signed in for the first time`),
    async rename(by: Actor, id: string, name: string): Promise<PersonRecord> {
      const found = known(id);
      if (found.person.name === name) return found;
      const renamed = await table.update(id, (stored = found) => ({
        ...stored,
        person: { ...(stored.person ?? found.person), name },
      }));
      await record(by, `${personWords(found.person)} is now called ${name}`);
      return renamed;
    },
    async revoke(by: Actor, id: string): Promise<PersonRecord> {
      const found = known(id);
      if (found.revoked > 0) return found;
      // This stays, also where the person is renamed or seen at the same time.
      const revoked = await table.update(id, (stored = found) => ({ ...stored, revoked: now() }));
      await record(by, `${personWords(found.person)} was revoked`);
      return revoked;
    },
  };
}

/** Refuses an id that no person has. */
export function noSuchPerson(id: string): RequestError {
  return new RequestError(
    ErrorReason.NO_SUCH_PERSON,
    `there is no person "${id}"; list them with \`toolgate people\``,
    { person_id: id },
  );
}
