import type { MessageInitShape } from "@bufbuild/protobuf";
import type {
  PersonRecord,
  PersonRecordSchema,
  PersonService,
} from "../../../gen/opencode/tool/v1/person_service_pb.ts";
import type { Credentials } from "../../people/credentials.ts";
import type { People } from "../../people/people.ts";
import { type PersonRules, withGroups } from "../../people/person-rules.ts";
import { checkRole } from "./access.ts";
import { recordOf } from "./credential-service.ts";
import type { EdgeContext } from "./edge-context.ts";
import { newestFirstKey, pageByKey } from "./paging.ts";
import type { ServiceFunctions } from "./rpc.ts";

/** Domain that PersonService works on. */
export interface PersonServiceDomain {
  people: People;
  credentials: Credentials;
  personRules: () => PersonRules;
}

/** Returns the functions of PersonService. */
export function personService({
  people,
  credentials,
  personRules,
}: PersonServiceDomain): ServiceFunctions<typeof PersonService> {
  function withDevices(record: PersonRecord): MessageInitShape<typeof PersonRecordSchema> {
    const { id, created, revoked, invitedBy, claims, claimed } = record;
    const person = withGroups(record, personRules(), credentials.now());
    const own = credentials.list().filter(({ personId }) => personId === record.id);
    const devices = own.toSorted((one, other) => other.created - one.created);
    const facts = { id, created, revoked, invitedBy, claims, claimed, ...(person && { person }) };
    return { ...facts, devices: devices.map((each) => recordOf(each, credentials.lastSeen(each.id))) };
  }

  return {
    listPeople(request) {
      const { page, nextPageToken } = pageByKey(people.current(), newestFirstKey, request);
      return { people: page.map(withDevices), nextPageToken };
    },
    async renamePerson({ id, name }, { principal }) {
      checkMayChange(principal, id, "RenamePerson");
      return { person: withDevices(await people.rename(principal, id, name)) };
    },
    async revokePerson({ id }, { principal }) {
      checkMayChange(principal, id, "RevokePerson");
      return { person: withDevices(await credentials.revokePerson(principal, id)) };
    },
  };
}

/** Approvers change their own person; an admin changes any. */
function checkMayChange(principal: EdgeContext["principal"], id: string, rpc: string): void {
  if (principal.identity?.person.id !== id) checkRole(principal, ["admin"], `${rpc} of another person`);
}
