import { randomUUID } from "node:crypto";
import { mkdtemp, realpath, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Store } from "../../src/call/ports.ts";
import type { Logger } from "../../src/core/logger.ts";
import type { NoticeStore } from "../../src/reach/ports.ts";
import { openRedisStore } from "../../src/store/redis/store.ts";
import { openSqliteStore } from "../../src/store/sqlite/store.ts";

/** Contents that the replicas of one run share. */
export interface Contents {
  /** Number of replicas. */
  replicas: number;
  /** Opens a store for one more replica; it uses the test's clock. */
  open(): Promise<Store & { notices: NoticeStore }>;
  /** Removes the contents, after the stores were closed. */
  remove(): Promise<void>;
}

/** Creates empty contents. */
export type NewContents = (clock: () => number, log: Logger) => Promise<Contents>;

/** SQLite: one replica at a time; each opens the same file. */
export const inSqlite: NewContents = async (clock, log) => {
  const directory = await realpath(await mkdtemp(join(tmpdir(), "toolgate-model-")));
  return {
    replicas: 1,
    open: () => openSqliteStore({ directory, clock, log }),
    remove: () => rm(directory, { recursive: true, force: true }),
  };
};

/** Redis: three replicas with separate connections; every run has its own key prefix. */
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
