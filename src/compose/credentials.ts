import { rmSync } from "node:fs";
import { join } from "node:path";
import { create } from "@bufbuild/protobuf";
import type { DecisionRecord } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { PersonRecordSchema } from "../../gen/opencode/tool/v1/person_service_pb.ts";
import type { Config } from "../config/config.ts";
import { serviceRoot } from "../core/ids.ts";
import type { Logger } from "../core/logger.ts";
import { passkeyPlace } from "../core/passkey-receipt.ts";
import { readIfExists } from "../core/read-files.ts";
import { createAccounts } from "../people/accounts.ts";
import { adoptSignIns } from "../people/adopt-sign-ins.ts";
import { createCertificateCallers } from "../people/client-certificates.ts";
import { credentialOf, hashOfSecret } from "../people/credential.ts";
import { type Credentials, createCredentials } from "../people/credentials.ts";
import { createDelegates } from "../people/delegates.ts";
import { createJwtCallers } from "../people/jwt.ts";
import { createPasskeys } from "../people/passkeys.ts";
import { createPeople } from "../people/people.ts";
import { createProviderSignIns } from "../people/provider-sign-ins.ts";
import type { ServiceStore } from "../store/record-tables.ts";

/**
 * Opens the credentials of a service, and its persons. Replaces the approver token of an earlier version by its hash, and makes the
 * sign-ins of a version without persons those of persons.
 */
export async function openCredentialParts(config: Config, store: ServiceStore, log: Logger) {
  const { now } = store.calls;
  const { lastSeen } = store;
  const adoptedApprover = await adoptApprover(config, store.credentials, now(), log);
  const table = adoptSignIns(store.credentials);
  const note = (record: DecisionRecord) => store.permissions.recordDecisions(serviceRoot, [record]);
  const people = createPeople({ people: store.people, note, now });
  for (const { person, created } of table.adopted().values())
    if (!people.find(person.id)) await store.people.put(create(PersonRecordSchema, { id: person.id, person, created }));
  const accounts = createAccounts({ table: store.accounts, people, now });
  const passkeys = createPasskeys({
    ...{ table: store.passkeys, secrets: store.secrets, people, now },
    place: passkeyPlace(config.publicUrl),
  });
  const rules = () => config;
  const stored = createCredentials({ table, people, lastSeen, now, configured: () => config.tokens, rules });
  const delegates = createDelegates({ table: store.delegates, people, groupsNow: stored.groupsNow, now });
  // Issuers date their tokens by the time of day, not by that of the store.
  const jwt = createJwtCallers({ rules: () => config.jwt, now: Date.now, log });
  const certificates = createCertificateCallers(() => config.clientCerts, Date.now);
  const others = [jwt, certificates];
  const credentials: Credentials = {
    ...stored,
    principalOf: (sha256) => stored.principalOf(sha256) ?? jwt.principalOf(sha256) ?? certificates.principalOf(sha256),
    principalWithId: (id) => stored.principalWithId(id) ?? jwt.principalWithId(id) ?? certificates.principalWithId(id),
    endInvalid() {
      stored.endInvalid();
      for (const { endInvalid } of others) endInvalid();
    },
    async refresh() {
      for (const { endInvalid } of others) endInvalid();
      await Promise.all([stored.refresh(), accounts.refresh(), passkeys.refresh(), delegates.refresh()]);
      await signIns.refresh();
    },
  };
  const { refreshes } = store;
  const { endInvalid } = credentials;
  const signIns = createProviderSignIns({ rules, table, people, refreshes, now, log, endInvalid });
  return { credentials, jwt, certificates, people, accounts, passkeys, delegates, signIns, adoptedApprover };
}

/**
 * Moves the token of `tokens/approver` into the table as a hash, then deletes the file. A token that the service did not accept,
 * since others are configured, is only deleted.
 */
async function adoptApprover(
  { dataDirectory, callerTokenFile, insecureNoAuth, tokens }: Config,
  table: ServiceStore["credentials"],
  now: number,
  log: Logger,
): Promise<boolean> {
  const file = join(dataDirectory, "tokens", "approver");
  const token = readIfExists(file)?.trim();
  if (token === undefined) return false;
  const isAccepted = callerTokenFile !== undefined || (insecureNoAuth && tokens.length === 0);
  const isNew = !table.current().some(({ sha256 }) => sha256 === hashOfSecret(token));
  if (isAccepted && isNew && token !== "") {
    const rights = { roles: ["approver"] as const, agents: ["*"], workspaces: ["*"] };
    await table.add(credentialOf("approver", token, rights, { label: "tokens/approver", created: now }));
  }
  rmSync(file);
  log.warn(
    isAccepted
      ? "the file of the approver token is deleted; the token stays valid, and only its hash is stored"
      : "the file of an approver token is deleted; configured tokens had replaced it",
    { path: file },
  );
  return isAccepted;
}
