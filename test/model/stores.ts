import { randomUUID } from "node:crypto";
import { mkdtemp, realpath, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Store } from "../../src/call/ports.ts";
import type { Logger } from "../../src/core/logger.ts";
import { openRedisStore } from "../../src/store/redis/store.ts";
import { openSqliteStore } from "../../src/store/sqlite/store.ts";

/** Where the replicas of one run keep what they know. */
export interface Contents {
  /** How many replicas share it. */
  replicas: number;
  /** Opens it for one more replica; a test's clock stands for its own. */
  open(): Promise<Store>;
  /** Removes all of it. The stores are closed. */
  remove(): Promise<void>;
}

/** Makes a new, empty place. */
export type NewContents = (clock: () => number, log: Logger) => Promise<Contents>;

/** SQLite: one replica at a time, each of them opens the same file. */
export const inSqlite: NewContents = async (clock, log) => {
  const directory = await realpath(await mkdtemp(join(tmpdir(), "toolgate-model-")));
  return {
    replicas: 1,
    open: () => openSqliteStore({ directory, clock, log }),
    remove: () => rm(directory, { recursive: true, force: true }),
  };
};

/** Redis: three replicas, each with connections of its own; every run has its own prefix. */
export function inRedis(url: string): NewContents {
  return async (clock, log) => {
    const prefix = randomUUID();
    return {
      replicas: 3,
      open: () => openRedisStore({ url, prefix, clock, log }),
      remove: async () => {},
    };
  };
}
