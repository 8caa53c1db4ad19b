import { randomUUID } from "node:crypto";
import type { Logger } from "../../src/core/logger.ts";
import type { Link } from "../../src/store/redis/link.ts";
import { openRedisStore } from "../../src/store/redis/store.ts";
import type { OpenedStore, StoreOptions } from "./fixture.ts";

export const quiet: Logger = { debug() {}, info() {}, warn() {}, error() {} };

/** Opens a store with a manual clock; each prefix is a separate store in the same Redis. */
export async function openIn(
  url: string,
  options: StoreOptions & { prefix?: string; through?: (link: Link) => Link } = {},
): Promise<OpenedStore> {
  const { prefix = randomUUID(), ...others } = options;
  let time = Date.now();
  let current: OpenedStore | undefined;
  const openAgain = async (): Promise<OpenedStore> => {
    const store = await openRedisStore({ url, prefix, log: quiet, clock: () => time, ...others });
    const advance = (ms: number) => {
      time += ms;
    };
    const reopen = async () => {
      await current?.calls.close();
      return openAgain();
    };
    current = { ...store, advance, reopen, close: async () => current?.calls.close() };
    return current;
  };
  return openAgain();
}
