import { rmSync } from "node:fs";
import { join } from "node:path";
import { create } from "@bufbuild/protobuf";
import type { DecisionRecord } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { PersonRecordSchema } from "../../gen/opencode/tool/v1/person_service_pb.ts";
import { endOfRestored } from "../call/claims.ts";
import type { OutputStore, Retention, Store } from "../call/ports.ts";
import type { Config } from "../config/config.ts";
import { serviceRoot } from "../core/ids.ts";
import type { Logger } from "../core/logger.ts";
import { readIfExists } from "../core/read-if-exists.ts";
import type { WorkerDirectory } from "../core/worker-directory.ts";
import { adoptSignIns } from "../people/adopt-sign-ins.ts";
import { credentialOf, hashOfSecret } from "../people/credential.ts";
import { type Credentials, createCredentials } from "../people/credentials.ts";
import { createJwtCallers } from "../people/jwt.ts";
import { createPeople } from "../people/people.ts";
import type { CredentialTable } from "../people/ports.ts";
import { openLoggedCredentialFile } from "../store/credential-file.ts";
import type { RecordTables } from "../store/record-tables.ts";
import { type RestoredStore, restoreBackup } from "../store/sqlite/restore.ts";
import { openSqliteStore } from "../store/sqlite/store.ts";

/** A store with the tables that people change next to its records of calls. */
export interface ServiceStore extends Store, RecordTables {
  credentials: CredentialTable;
  workerDirectory: WorkerDirectory;
  /** Yields the bytes of a backup; refuses with BACKUP_UNSUPPORTED. */
  backUp(): AsyncIterable<Uint8Array>;
}

/** Opens the store that the configuration names. Redis' driver is loaded only for it. */
export async function openStore(config: Config, log: Logger): Promise<ServiceStore> {
  const { dataDirectory: directory, storeStrict: strict, storeCopies, storeMinFree: minFreeBytes } = config;
  if (config.store !== "sqlite") {
    const { openRedisStore } = await import("../store/redis/store.ts");
    return await openRedisStore({
      ...{ url: config.store, log, copies: { strict, copies: storeCopies } },
      historyFile: join(directory, "redis-histories.json"),
      counterFile: join(directory, "redis-counter.json"),
    });
  }
  const { newStore = false } = config;
  return await openSqliteStore({ directory, log, space: { minFreeBytes }, endOpenCall: endOfRestored, newStore });
}

/** Opens only the table of credentials, next to a service that may be running. */
export async function openCredentials(
  config: Pick<Config, "store" | "dataDirectory">,
  log: Logger,
): Promise<{ table: CredentialTable; close(): Promise<void> }> {
  if (config.store !== "sqlite") {
    const { openRedisCredentials } = await import("../store/redis/credentials.ts");
    return await openRedisCredentials({ url: config.store, log });
  }
  return { table: openLoggedCredentialFile(config.dataDirectory, log), close: async () => {} };
}

/** Restores a backup into a data directory that no service uses. */
export async function restoreInto(directory: string, file: string): Promise<RestoredStore> {
  return await restoreBackup(file, directory, endOfRestored);
}

/** The limits in force: Redis holds output in memory, so its limit is lower. */
export function limitsOf({ store, limits }: Pick<Config, "store" | "limits">): Config["limits"] {
  if (store === "sqlite") return limits;
  return { ...limits, outputBytes: Math.min(limits.outputBytes, maxRedisOutputBytes) };
}

/** Removes what is past its retention time: records first, then the content of the outputs they named. */
export async function sweepStore({
  calls,
  outputs,
}: {
  calls: Retention;
  outputs: Pick<OutputStore, "remove">;
}): Promise<void> {
  const { outputs: gone } = await calls.sweep();
  for (const { root, id } of gone) await outputs.remove(root, id);
}

const maxRedisOutputBytes = 64 * 1024 * 1024;

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
  const stored = createCredentials({ table, people, lastSeen, now, configured: () => config.tokens });
  // Issuers date their tokens by the time of day, not by that of the store.
  const jwt = createJwtCallers({ rules: () => config.jwt, now: Date.now, log });
  const credentials: Credentials = {
    ...stored,
    principalOf: (sha256) => stored.principalOf(sha256) ?? jwt.principalOf(sha256),
    principalWithId: (id) => stored.principalWithId(id) ?? jwt.principalWithId(id),
    endInvalid() {
      stored.endInvalid();
      jwt.endInvalid();
    },
    async refresh() {
      jwt.endInvalid();
      await stored.refresh();
    },
  };
  return { credentials, jwt, people, adoptedApprover };
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
