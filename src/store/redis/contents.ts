import { Redis } from "ioredis";
import { masters } from "./client.ts";
import { type Connection, encodeStep, evaluateScript, sendCommand } from "./connection.ts";
import { shards } from "./keys.ts";
import { replyList, text } from "./reply.ts";
import { establishStoreId, type StoreIds } from "./store-id.ts";

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

/** Verifies until no connection was lost meanwhile, then measures the clock. */
async function establish(connection: Connection): Promise<void> {
  const { log, lossListeners } = connection;
  const ids = storeIds(connection);
  for (let seen = -1; seen !== connection.losses; ) {
    seen = connection.losses;
    const id = await establishStoreId(ids);
    if (connection.storeId !== "" && id !== connection.storeId) {
      log.error("the Redis store lost all or a part of its contents; it has a new store id", { reason: id });
      for (const forget of lossListeners) forget();
    }
    connection.storeId = id;
    if (seen === connection.losses) connection.verifiedLosses = seen;
  }
  await measureClock(connection);
}

async function measureClock(connection: Connection): Promise<void> {
  const before = performance.now();
  const [seconds, micros] = (await masters(connection.client)[0]?.time()) ?? [];
  const here = (before + performance.now()) / 2;
  if (seconds !== undefined) connection.clockOffsetMs = Number(seconds) * 1_000 + Number(micros) / 1_000 - here;
}

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
