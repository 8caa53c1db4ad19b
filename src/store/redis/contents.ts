import { randomBytes } from "node:crypto";
import { readFileSync } from "node:fs";
import { rename, writeFile } from "node:fs/promises";
import { setTimeout as delay } from "node:timers/promises";
import { Redis } from "ioredis";
import { z } from "zod";
import packageJson from "../../../package.json" with { type: "json" };
import { earlierFormatRuns, laterFormat } from "../errors.ts";
import { masters } from "./client.ts";
import { agreeOnClock } from "./clock.ts";
import { type Connection, encodeStep, evaluateScript, sendCommand } from "./connection.ts";
import { addressOf, type Replication } from "./copies.ts";
import { adoptGenerations, agreeOnHistories, type FoundMaster, isFailover, readMasters } from "./histories.ts";
import { allShards, shards } from "./keys.ts";
import { number, type Reply, replyList, text } from "./reply.ts";

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

function storeIds(connection: Connection) {
  const { client, keys } = connection;
  const names = Array.from({ length: shards }, (_, shard) => keys.storeId(shard));
  return {
    async read(): Promise<(string | undefined)[]> {
      // The nodes of a cluster answer only for keys of one slot.
      const found =
        client instanceof Redis
          ? replyList(await sendCommand(connection, "mget", ...names))
          : await Promise.all(names.map((name) => sendCommand(connection, "get", name)));
      return found.map((id) => text(id) || undefined);
    },
    write: async (shard: number, id: string): Promise<void> =>
      void (await sendCommand(connection, "set", keys.storeId(shard), id)),
    /** Compares and sets the id of the first shard; returns its id afterwards. */
    decide: async (seen: string, id: string): Promise<string> =>
      text(await evaluateScript(connection, "set_store_id", encodeStep({ id: keys.storeId(0) }, { seen, id }, {}))),
  };
}

/** Access to the store ids of the shards. */
type StoreIds = ReturnType<typeof storeIds>;

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

/**
 * Number of the format of what replicas write to Redis. All versions with one number share a store. It is raised where an earlier
 * version would damage or leave what this one writes. Format 1 had no number: its replicas hold a policy as STRING, and fail at a HASH.
 */
export const storeFormat = 2;

/**
 * Raises the format of the store at the start of a program. Waits for the announcement of replicas of an earlier format to lapse, and
 * refuses to start while one of them renews it.
 */
export async function agreeOnFormat(connection: Connection): Promise<void> {
  const { client, log } = connection;
  let before: number | undefined;
  for (;;) {
    const { format, heldMs } = await readFormat(connection);
    if (heldMs === 0) return;
    if (before === undefined)
      log.warn(
        `replicas of an earlier Toolgate (format ${format}) run on this Redis, or ended less than 30 s ago: waiting for the end of their announcement`,
        { reason: `${heldMs} ms left` },
      );
    else if (heldMs > before) throw earlierFormatRuns(placeOf(client), { format, known: storeFormat });
    before = heldMs;
    await delay(Math.min(heldMs, pauseMs));
  }
}

/** Refuses a store whose format is not the one of this replica: one that was away may find a later one. */
async function checkFormat(connection: Connection): Promise<void> {
  const { format, heldMs } = await readFormat(connection);
  if (heldMs > 0) throw earlierFormatRuns(placeOf(connection.client), { format, known: storeFormat });
}

/** Reads the format, or sets it where there is none; refuses a later one. */
async function readFormat(connection: Connection): Promise<{ format: number; heldMs: number }> {
  const { client, keys } = connection;
  const names = { format: keys.format, policy: keys.policy };
  const step = encodeStep(names, { format: storeFormat, version: packageJson.version }, {});
  const [format, version, heldMs] = replyList(await evaluateScript(connection, "agree_on_format", step));
  const found = { format: number(format), version: text(version) };
  if (found.format > storeFormat) throw laterFormat(placeOf(client), found, storeFormat);
  return { ...found, heldMs: number(heldMs) };
}

const placeOf = (client: Connection["client"]) => `the Redis at ${masters(client).map(addressOf).join(", ")}`;

/** Pause between two looks at the announcement, which its replicas renew each 10 s. */
const pauseMs = 1_000;

const form = z.object({ storeId: z.string(), count: z.number() });

/** Continues with what the last process of this replica knew: a restore while no process runs is found so. */
export function recallCounter({ counter, counterFile, log }: Connection): void {
  if (counterFile === undefined) return;
  try {
    const { storeId, count } = form.parse(JSON.parse(readFileSync(counterFile, "utf8")));
    Object.assign(counter, { storeId, known: count });
  } catch {
    log.info(
      "this replica has no memory of its Redis yet: if that was set back to an older state before this start, it is not noticed",
      { path: counterFile },
    );
  }
}

/**
 * Returns true if the store is at an earlier state than this replica knows. Its sessions then have another generation, so that open calls
 * end, and its grants are suspended. The caller gives it another id.
 */
async function isSetBack(connection: Connection): Promise<boolean> {
  const { counter, keys, log, replica, storeId } = connection;
  if (counter.storeId !== storeId) Object.assign(counter, { storeId, known: 0, raised: undefined });
  const values = { known: replica === undefined ? 0 : counter.known, shards: allShards };
  const step = encodeStep({ counter: keys.counter, generations: keys.generations }, values, {});
  const [state, restored, ...generations] = replyList(await evaluateScript(connection, "check_counter", step)).map(
    text,
  );
  counter.restored = Number(restored);
  adoptGenerations(connection, generations);
  if (state !== "back") return false;
  log.error(
    "Redis was set back to an older state: it is another store now, its open calls end, and its grants are suspended until `toolgate grants confirm` confirms them",
    { reason: storeId },
  );
  return true;
}

/** Raises the counter, once enough copies have the raise; stores outside of Redis how far it was raised for certain. */
export async function raiseCounter(
  connection: Connection,
  confirmed: (key: string, send: () => Promise<Reply>) => Promise<Reply>,
): Promise<void> {
  const { counter, keys, storeId } = connection;
  const step = encodeStep({ counter: keys.counter }, {}, {});
  const count = number(await confirmed(keys.counter, () => evaluateScript(connection, "raise_counter", step)));
  const { raised } = counter;
  // Another check has found another store meanwhile.
  if (counter.storeId !== storeId || connection.storeId !== storeId) return;
  const at = performance.now();
  if (raised === undefined || at - raised.at >= maxLossMs) counter.raised = { count, at };
  if (raised === undefined || at - raised.at < maxLossMs || count <= raised.count) return;
  counter.known = raised.count;
  await storeCounter(connection);
}

async function storeCounter({ counter, counterFile, log }: Connection): Promise<void> {
  if (counterFile === undefined) return;
  const { storeId, known: count } = counter;
  try {
    await writeFile(`${counterFile}.new`, JSON.stringify({ storeId, count } satisfies z.infer<typeof form>), {
      mode: 0o600,
    });
    await rename(`${counterFile}.new`, counterFile);
  } catch (error) {
    log.warn(
      "the counter of Redis cannot be stored: if Redis is set back while this replica is stopped, that is not noticed",
      {
        error,
      },
    );
  }
}

/** Age below which a raise may be lost with the server's machine, by `appendfsync everysec`: its loss is no restore. */
const maxLossMs = 3_000;
