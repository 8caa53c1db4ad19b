import { randomBytes } from "node:crypto";
import { Redis } from "ioredis";
import { agreeOnClock } from "./clock.ts";
import { type Connection, encodeStep, evaluateScript, sendCommand } from "./connection.ts";
import { checkFormat } from "./format.ts";
import { agreeOnHistories, type FoundMaster, isFailover, readMasters } from "./histories.ts";
import { shards } from "./keys.ts";
import { addressOf, type Replication } from "./replication.ts";
import { replyList, text } from "./reply.ts";
import { isSetBack } from "./restores.ts";

/** Returns true if the contents are known to be those of `storeId` and commands can be sent. */
export function isVerified({ verifiedLosses, losses, client }: Connection): boolean {
  return verifiedLosses === losses && client.status === "ready";
}

/** Reads the store id again, and notifies of lost contents if it has changed. Concurrent callers share one check. */
export function verifyContents(connection: Connection): Promise<void> {
  connection.verifying ??= establish(connection).finally(() => {
    connection.verifying = undefined;
  });
  return connection.verifying;
}

/** Verifies until no connection was lost meanwhile, then agrees on the time. */
async function establish(connection: Connection): Promise<void> {
  const { log, lossListeners } = connection;
  const ids = storeIds(connection);
  for (let seen = -1; seen !== connection.losses; ) {
    seen = connection.losses;
    const found = await findMasters(connection);
    await checkFormat(connection);
    const id = await establishStoreId(ids);
    if (connection.storeId !== "" && id !== connection.storeId) {
      log.error("the Redis store lost all or a part of its contents; it has a new store id", { reason: id });
      for (const forget of lossListeners) forget();
    }
    connection.storeId = id;
    // Without strict mode a failover may lose raises; the histories find what else it lost.
    if (!connection.isStrict && isFailover(connection, found)) connection.counter.known = 0;
    if (await isSetBack(connection)) {
      await replaceStoreId(ids, id);
      seen = -1;
      continue;
    }
    await agreeOnHistories(connection, found);
    if (seen === connection.losses) connection.verifiedLosses = seen;
  }
  await agreeOnClock(connection);
}

/** Reads the masters, and leaves a server that has become a copy: what it accepted since would be lost. */
async function findMasters({ client }: Connection): Promise<FoundMaster[]> {
  const found = await readMasters(client);
  if (client instanceof Redis && found.some(({ isMaster }) => !isMaster)) {
    if (client.status === "ready") client.disconnect(true);
    throw new Error(`the Redis at ${addressOf(client)} is a copy`);
  }
  return found;
}

/** Throws if a server is no master, or does not continue a known history; then the contents are verified again. */
export function checkHistory(connection: Connection, { isMaster, id }: Replication): void {
  if (isMaster && connection.histories.has(id)) return;
  void verifyContents(connection).catch(() => {});
  throw failedOver();
}

/** Failure of a step whose answer a failover may have made void; it is taken again. */
export const failedOver = () => new Error("Redis failed over meanwhile");

function storeIds(connection: Connection): StoreIds {
  const { client, keys } = connection;
  const names = Array.from({ length: shards }, (_, shard) => keys.storeId(shard));
  return {
    async read() {
      // The nodes of a cluster answer only for keys of one slot.
      const found =
        client instanceof Redis
          ? replyList(await sendCommand(connection, "mget", ...names))
          : await Promise.all(names.map((name) => sendCommand(connection, "get", name)));
      return found.map((id) => text(id) || undefined);
    },
    write: async (shard, id) => void (await sendCommand(connection, "set", keys.storeId(shard), id)),
    decide: async (seen, id) =>
      text(await evaluateScript(connection, "set_store_id", encodeStep({ id: keys.storeId(0) }, { seen, id }, {}))),
  };
}

/** Access to the store ids of the shards. */
interface StoreIds {
  read(): Promise<(string | undefined)[]>;
  write(shard: number, id: string): Promise<void>;
  /** Compares and sets the id of the first shard; returns its id afterwards. */
  decide(seen: string, id: string): Promise<string>;
}

/**
 * Finds the id that all shards share. If a shard lacks it or has another one, a part of the contents was lost (or this is the
 * first start): then all get a new id. The first shard decides; while a new id is being written it is marked as changing,
 * and every replica that sees the mark writes the same id.
 */
async function establishStoreId(ids: StoreIds): Promise<string> {
  for (let attempt = 0; attempt < 20; attempt++) {
    const [first = "", ...others] = await ids.read();
    if (first !== "" && !first.startsWith(changing) && others.every((id) => id === first)) return first;
    const decided = first.startsWith(changing) ? first : await ids.decide(first, `${changing}${newStoreId()}`);
    if (!decided.startsWith(changing)) continue;
    const id = decided.slice(changing.length);
    await Promise.all(others.map((_, index) => ids.write(index + 1, id)));
    await ids.decide(decided, id);
  }
  throw new Error("the id of the Redis store keeps changing: is another program writing to its keys?");
}

/** Begins to replace the id that the caller has read; `establishStoreId` completes it. Another replica may have done so. */
async function replaceStoreId({ decide }: StoreIds, seen: string): Promise<void> {
  await decide(seen, `${changing}${newStoreId()}`);
}

const changing = "changing to ";
const newStoreId = () => `sto_${randomBytes(16).toString("hex")}`;
