import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { openSqliteStore } from "../../src/store/sqlite/store.ts";
import { storeContract } from "./contract.ts";
import type { OpenedStore } from "./fixture.ts";

storeContract("sqlite", async ({ limits } = {}) => {
  const directory = await mkdtemp(join(tmpdir(), "toolgate-store-"));
  let time = Date.now();
  let current: OpenedStore | undefined;
  const openAgain = async (): Promise<OpenedStore> => {
    const store = await openSqliteStore({ directory, clock: () => time, ...(limits && { limits }) });
    const advance = (ms: number) => {
      time += ms;
    };
    const reopen = async () => {
      await current?.calls.close();
      return openAgain();
    };
    const close = async () => {
      await current?.calls.close();
      await rm(directory, { recursive: true });
    };
    current = { ...store, advance, reopen, close };
    return current;
  };
  return openAgain();
});
