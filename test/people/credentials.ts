import type { LastSeen, PersonRecord } from "../../gen/opencode/tool/v1/person_service_pb.ts";
import type { RecordTable } from "../../src/core/record-table.ts";
import { createCredentials } from "../../src/people/credentials.ts";
import type { ConfiguredToken } from "../../src/people/known-credentials.ts";
import { createPeople } from "../../src/people/people.ts";
import type { CredentialTable } from "../../src/people/ports.ts";

/** Creates credentials over a table, with persons in memory. */
export function credentialsOver(
  table: CredentialTable,
  now: () => number,
  configured: () => readonly ConfiguredToken[] = () => noTokens,
) {
  const people = createPeople({ people: memoryTable<PersonRecord>(), note: async () => {}, now });
  return createCredentials({ table, people, lastSeen: memoryTable<LastSeen>(), now, configured });
}

const noTokens: readonly ConfiguredToken[] = [];

/** Creates a table in memory. */
export function memoryTable<T extends { id: string }>(): RecordTable<T> {
  let records: readonly T[] = [];
  const others = (id: string) => records.filter((record) => record.id !== id);
  return {
    current: () => records,
    refresh: async () => {},
    async put(record) {
      records = [...others(record.id), record];
    },
    async update(id, next) {
      const made = next(records.find((record) => record.id === id));
      if (made !== undefined) records = [...others(id), made];
      return made;
    },
    async remove(id) {
      const found = records.find((record) => record.id === id);
      records = others(id);
      return found;
    },
  };
}
