import type { OutputStore, Retention, Store } from "../call/ports.ts";
import type { Config } from "../config/config.ts";
import type { Logger } from "../core/logger.ts";
import { openRedisStore } from "../store/redis/store.ts";
import { openSqliteStore } from "../store/sqlite/store.ts";

/** Opens the store that the configuration names. */
export function openStore({ store, dataDirectory, storeMinFree }: Config, log: Logger): Promise<Store> {
  return store === "sqlite"
    ? openSqliteStore({ directory: dataDirectory, log, space: { minFreeBytes: storeMinFree } })
    : openRedisStore({ url: store, log });
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
