import { join } from "node:path";
import { z } from "zod";
import type { Logger } from "../core/logger.ts";
import { roleNames } from "../core/principal.ts";
import type { Credential } from "../people/credential.ts";
import type { CredentialTable } from "../people/ports.ts";
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

const time = z.number().min(0);

/** Schema of one record. */
export const credentialSchema: z.ZodType<Credential> = z.object({
  id: z.string().min(1),
  roles: z.array(z.enum(roleNames)),
  agents: z.array(z.string()),
  workspaces: z.array(z.string()),
  sha256: z.string().regex(/^[0-9a-f]{64}$/),
  label: z.string(),
  created: time,
  expires: time,
  revoked: time,
  personId: z.string().min(1).optional(),
  issuer: z.string().min(1).optional(),
  lineage: z.tuple([z.string().min(1)], z.string().min(1)).optional(),
  worker: z
    .object({
      tools: z.array(z.string()),
      permissions: z.array(z.string()),
      calls: z.array(z.string()),
      idempotent: z.boolean(),
      pin: z.array(z.string()),
    })
    .optional(),
  uid: z.number().int().min(0).optional(),
});

const table = z.object({ credentials: z.array(credentialSchema) });

const form: RecordForm<Credential> = {
  read: (json) => table.parse(json).credentials,
  write: (credentials) => ({ credentials }),
  unreadable: (fact) => `a table of credentials (${fact}): restore it, or remove it and sign in again`,
};
