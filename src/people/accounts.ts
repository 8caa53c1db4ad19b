import { create } from "@bufbuild/protobuf";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import { AnswerMethod } from "../../gen/opencode/tool/v1/permission_pb.ts";
import {
  type AccountRecord,
  AccountRecordSchema,
  type LinkedAccount,
  LinkedAccountSchema,
  type PersonRecord,
} from "../../gen/opencode/tool/v1/person_service_pb.ts";
import type { Identity } from "../core/principal.ts";
import type { RecordTable } from "../core/record-table.ts";
import { RequestError } from "../core/request-error.ts";
import { hashOfSecret, randomText } from "./credential.ts";
import { codeMs } from "./credentials.ts";
import type { Actor, People } from "./people.ts";

/** Accounts at channels, each of one person. */
export type Accounts = ReturnType<typeof createAccounts>;

/**
 * Creates the accounts over their table, which has the open codes too: any replica may receive the code that another one made. An
 * account is its provider with the ids that it gives, such as `slack:T0123/U0456`, never an e-mail address.
 */
export function createAccounts({
  table,
  people,
  now,
}: {
  table: RecordTable<AccountRecord>;
  people: Pick<People, "find" | "noteAbout">;
  now: () => number;
}) {
  const find = (id: string) => table.current().find((record) => record.id === id && record.expires === 0);

  return {
    refresh: table.refresh,
    /** Returns the person whose account it is; empty if it is not linked. */
    personOf: (account: string): string => find(account)?.personId ?? "",
    /** Lists the accounts of a person. */
    of: (personId: string): LinkedAccount[] =>
      table
        .current()
        .filter((record) => record.personId === personId && record.expires === 0)
        .map(({ id, linked }) => create(LinkedAccountSchema, { id, linked })),
    /** Creates a code that links an account to the person who is signed in. */
    async createCode({ identity }: { identity?: Identity | undefined }): Promise<{ code: string; expires: number }> {
      const personId = identity?.person.id ?? "";
      if (identity?.method !== AnswerMethod.SESSION || !people.find(personId)) throw signInNeeded();
      // One open code for each person, so that they stay few.
      for (const { id, personId: owner, expires } of table.current())
        if (expires > 0 && (expires <= now() || owner === personId)) await table.remove(id);
      const [code, expires] = [randomText(16).replaceAll(/(.{4})(?=.)/g, "$1-"), now() + codeMs];
      await table.put(create(AccountRecordSchema, { id: idOfCode(code), personId, expires }));
      return { code, expires };
    },
    /** Links an account to the person of a code, which is used up. Returns why not, for the person who typed it. */
    async link(account: string, code: string, channel: string): Promise<string | undefined> {
      await table.refresh();
      const linked = find(account);
      const owner = linked && people.find(linked.personId);
      if (owner && owner.revoked === 0) return "This account is linked already: unlink it in Toolgate first.";
      const taken = await table.remove(idOfCode(code));
      const person = taken && taken.expires > now() ? people.find(taken.personId) : undefined;
      if (person?.person === undefined || person.revoked > 0)
        return "The code is unknown, used or older than 10 minutes: get a new one in Toolgate.";
      await table.put(create(AccountRecordSchema, { id: account, personId: person.id, linked: now() }));
      const identity = { person: person.person, method: AnswerMethod.CHANNEL };
      await people.noteAbout({ id: `channel:${channel}`, identity }, person.person, `linked the account ${account}`);
      return undefined;
    },
    /** Ends the link of an account; returns its person. */
    async unlink(by: Actor, personId: string, account: string): Promise<PersonRecord> {
      const record = people.find(personId);
      if (record?.person === undefined || find(account)?.personId !== personId) throw noSuchAccount(personId, account);
      await table.remove(account);
      await people.noteAbout(by, record.person, `the account ${account} was unlinked`);
      return record;
    },
  };
}

/** Names the record of a code, of which the store has the hash only. */
const idOfCode = (code: string) => `code:${hashOfSecret(code.toLowerCase().replaceAll(/[\s-]/g, ""))}`;

function signInNeeded(): RequestError {
  return new RequestError(
    ErrorReason.METHOD_TOO_WEAK,
    "an account is linked by the person it belongs to: sign in with `toolgate login` or in the console, not with a token",
  );
}

function noSuchAccount(personId: string, account: string): RequestError {
  return new RequestError(
    ErrorReason.NO_SUCH_PERSON,
    `person "${personId}" has no account "${account}"; list them with \`toolgate people\``,
    { person_id: personId },
  );
}
