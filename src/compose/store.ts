import { join } from "node:path";
import { endOfRestored } from "../call/claims.ts";
import type { OutputStore, Retention } from "../call/ports.ts";
import type { Config } from "../config/config.ts";
import type { Logger } from "../core/logger.ts";
import type { CredentialTable } from "../people/ports.ts";
import { openLoggedCredentialFile } from "../store/credential-file.ts";
import type { ServiceStore } from "../store/record-tables.ts";
import { type RestoredStore, restoreBackup } from "../store/sqlite/restore.ts";
import { openSqliteStore } from "../store/sqlite/store.ts";

/** Opens the store that the configuration names. Redis' driver is loaded only for it. */
export async function openStore(config: Config, log: Logger): Promise<ServiceStore> {
  const { dataDirectory: directory, storeStrict: strict, storeCopies, storeMinFree: minFreeBytes } = config;
  const { auditDays, auditMaxDays, auditExports } = config;
  const audit = { auditDays, auditMaxDays, receivers: auditExports.map(({ name }) => name) };
  if (config.store !== "sqlite") {
    const { openRedisStore } = await import("../store/redis/store.ts");
    return await openRedisStore({
      ...{ url: config.store, log, copies: { strict, copies: storeCopies }, ...audit },
      historyFile: join(directory, "redis-histories.json"),
      counterFile: join(directory, "redis-counter.json"),
    });
  }
  const { newStore = false } = config;
  return await openSqliteStore({
    directory,
    log,
    space: { minFreeBytes },
    endOpenCall: endOfRestored,
    newStore,
    ...audit,
  });
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
