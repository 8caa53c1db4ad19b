import { join } from "node:path";
import { z } from "zod";
import type { Logger } from "../core/logger.ts";
import type { Credential } from "../people/credential.ts";
import type { CredentialTable } from "../people/ports.ts";
import { credentialSchema } from "./credential-schema.ts";
import { openRecordFile, type RecordForm } from "./record-file.ts";

/** Opens the table of a data directory; a file that becomes unreadable is logged. */
export function openLoggedCredentialFile(dataDirectory: string, log?: Logger): CredentialTable {
  const report = (problem: string) => log?.error(`no stored credential is accepted: ${problem}`);
  return openCredentialFile(join(dataDirectory, "credentials.json"), { report });
}

/** Opens the table in a file, to which `toolgate token create` can add a record while the service runs. */
export function openCredentialFile(
  file: string,
  options: { report?: (problem: string) => void } = {},
): CredentialTable {
  const { current, change } = openRecordFile(file, form, options);
  return {
    current,
    async refresh() {
      current();
    },
    add: (credential) => change((stored) => [...stored, credential]),
    async revoke(id, time) {
      await change((stored) =>
        stored.map((each) => (each.id === id && each.revoked === 0 ? { ...each, revoked: time } : each)),
      );
      return current().find((each) => each.id === id);
    },
    remove: (ids) => change((stored) => stored.filter(({ id }) => !ids.includes(id))),
  };
}

const table = z.object({ credentials: z.array(credentialSchema) });

const form: RecordForm<Credential> = {
  read: (json) => table.parse(json).credentials,
  write: (credentials) => ({ credentials }),
  unreadable: (fact) => `a table of credentials (${fact}): restore it, or remove it and sign in again`,
};
