import { readFileSync } from "node:fs";
import { rename, writeFile } from "node:fs/promises";
import { Cluster, type Redis } from "ioredis";
import { z } from "zod";
import { type Client, masters } from "./client.ts";
import { type Connection, encodeStep, evaluateScript } from "./connection.ts";
import { type Replication, readReplication } from "./copies.ts";
import { allShards, shardOfSlot, shardOfTree, shards } from "./keys.ts";
import { replyList, text } from "./reply.ts";

/** A master with the shards that it serves. */
export interface FoundMaster extends Replication {
  readonly node: Redis;
  readonly shards: readonly number[];
}

/**
 * Reads which histories the masters write, and which shards they serve. A server of a cluster that serves none, such as one that has just
 * started again, has no say.
 */
export async function readMasters(client: Client): Promise<FoundMaster[]> {
  const found = await Promise.all(
    masters(client).map(async (node) => ({ ...(await readReplication(node)), node, shards: shardsOf(client, node) })),
  );
  const serving = found.filter(({ isMaster, shards }) => isMaster && shards.length > 0);
  if (!(client instanceof Cluster)) return found;
  if (serving.length > 0) return serving;
  // The cluster names its servers otherwise than they were reached.
  return found.map((master) => ({ ...master, shards: allShards }));
}

/** Notes that all of a history up to its offset was acknowledged, or may have been. */
export function noteAcknowledged(
  { acknowledged }: Connection,
  { id, offset }: Pick<Replication, "id" | "offset">,
): void {
  if ((acknowledged.get(id) ?? -1) < offset) acknowledged.set(id, offset);
}

/**
 * Checks that the histories of masters continue what this replica has acknowledged, and agrees on that with the other replicas. If
 * one of them lacks something, or cannot be compared, the generation of its shards is raised, so the store ids of their sessions
 * change. Resolves once that is decided: until then nothing is read or written.
 */
export async function agreeOnHistories(connection: Connection, found: readonly FoundMaster[]): Promise<void> {
  const { acknowledged, breakListeners } = connection;
  if (connection.histories.size === 0) recallHistories(connection);
  const { histories } = connection;
  connection.isReplicated ||= found.some(({ copies }) => copies > 0);
  const others = found.filter(({ id }) => !histories.has(id));
  if (connection.replica !== undefined && connection.isReplicated) {
    if (histories.size > 0) for (const master of others) await decide(connection, master);
    adoptGenerations(connection, await announce(connection));
  }
  connection.histories = continueHistories(histories, found);
  for (const id of acknowledged.keys()) if (!connection.histories.has(id)) acknowledged.delete(id);
  if (histories.size > 0 && others.length > 0) {
    // At once: a confirmation by the new history must not acknowledge what was answered before it.
    connection.epoch += 1;
    for (const forget of breakListeners) forget();
  }
  await storeHistories(connection);
}

/** Returns true if a master was a copy of a history that is known here, and has taken over from it. */
export function isFailover(connection: Connection, found: readonly FoundMaster[]): boolean {
  if (connection.histories.size === 0) recallHistories(connection);
  const { histories } = connection;
  return found.some(({ id, formerId }) => !histories.has(id) && histories.has(formerId));
}

/** Returns the histories of the found masters, and those of which some shard has no master now: a copy may continue them. */
export function continueHistories(
  histories: Connection["histories"],
  found: readonly Pick<FoundMaster, "id" | "shards">[],
): Map<string, readonly number[]> {
  const served = new Set(found.flatMap((master) => master.shards));
  const open = [...histories].filter(([, own]) => own.some((shard) => !served.has(shard)));
  return new Map([...open, ...found.map((master) => [master.id, master.shards] as const)]);
}

/** Returns the generation of the shard of a session tree. */
export function generationOf({ generations }: Connection, root: string): number {
  return generations[shardOfTree(root)] ?? 0;
}

/** Removes this replica from those whose report a failover waits for. */
export async function withdrawReplica(connection: Connection): Promise<void> {
  const { client, keys, replica = "", isReplicated } = connection;
  await storeHistories(connection);
  if (isReplicated && client.status === "ready") await client.zrem(keys.replicas, replica).catch(() => {});
}

/** Reports what this replica knows about the history of a master, until all replicas have reported or were waited for. */
async function decide(connection: Connection, master: FoundMaster): Promise<void> {
  const { keys, log, generations, replica } = connection;
  const verdict = hasAcknowledged(connection, master) ? "kept" : "lost";
  const names = { generations: keys.generations, replicas: keys.replicas, agreement: keys.agreement(master.id) };
  const values = { replica, verdict, shards: master.shards, known: knownOf(generations), waitMs, liveMs };
  for (;;) {
    const reply = replyList(await evaluateScript(connection, "agree_on_history", encodeStep(names, values, {})));
    const [state, ...raised] = reply.map(text);
    if (state === "open") {
      await new Promise((resolve) => setTimeout(resolve, pauseMs));
      continue;
    }
    if (state === "raised")
      log.error(
        `a failover of Redis has lost acknowledged work, or it cannot be ruled out: the store ids of the sessions in ${master.shards.length} of ${shards} shards change, and retries that name the former ids get STORE_CHANGED`,
        { reason: verdict },
      );
    return adoptGenerations(connection, raised);
  }
}

/** Returns true if a master's history holds everything that this replica has acknowledged. */
function hasAcknowledged(
  { acknowledged, histories, isStrict }: Connection,
  { formerId, formerOffset }: Replication,
): boolean {
  // Without confirmations the copies may lack anything; without a common past the histories cannot be compared.
  if (!isStrict || !histories.has(formerId)) return false;
  return (acknowledged.get(formerId) ?? -1) < formerOffset;
}

/** Registers this replica as one that acknowledges; returns the generations. */
async function announce(connection: Connection): Promise<string[]> {
  const { keys, generations, replica } = connection;
  const names = { generations: keys.generations, replicas: keys.replicas };
  const step = encodeStep(names, { replica, known: knownOf(generations) }, {});
  return replyList(await evaluateScript(connection, "announce_replica", step)).map(text);
}

/** Takes over the generations of a reply (shard, generation, shard, ...). After a raise, what is cached here may be lost. */
export function adoptGenerations(connection: Connection, reply: readonly string[]): void {
  const { generations, lossListeners } = connection;
  const before = generations.join();
  for (let index = 0; index < reply.length; index += 2) {
    const shard = Number(reply[index]);
    generations[shard] = Math.max(generations[shard] ?? 0, Number(reply[index + 1]));
  }
  if (generations.join() === before) return;
  connection.raises += 1;
  for (const forget of lossListeners) forget();
}

/** Returns the generations that were raised: shard -> generation. */
const knownOf = (generations: readonly number[]): Record<string, number> =>
  Object.fromEntries(generations.flatMap((generation, shard) => (generation > 0 ? [[shard, generation]] : [])));

/** Returns the shards of which a master serves a part. */
function shardsOf(client: Client, { options: { host, port } }: Redis): readonly number[] {
  if (!(client instanceof Cluster)) return allShards;
  const served = new Set<number>();
  for (const [slot, nodes] of client.slots.entries())
    if (nodes?.[0] === `${host}:${port}`) served.add(shardOfSlot(slot));
  return [...served];
}

/** Time that the other replicas have to report. */
const waitMs = 5_000;
/** A replica that was announced within this time before the last announcement is expected to report. */
const liveMs = 60_000;
const pauseMs = 100;

const form = z.object({
  storeId: z.string(),
  isStrict: z.boolean(),
  /** Offset up to which each history was acknowledged. */
  acknowledged: z.record(z.string(), z.number()),
});

/**
 * Continues with what this replica's last process knew of the histories of this store, so that a failover while no process ran is
 * compared as well. A file that is missing or unreadable, or is of another store, is no knowledge.
 */
function recallHistories(connection: Connection): void {
  const { historyFile, storeId, acknowledged } = connection;
  if (historyFile === undefined) return;
  let stored: z.infer<typeof form>;
  try {
    stored = form.parse(JSON.parse(readFileSync(historyFile, "utf8")));
  } catch {
    return;
  }
  if (stored.storeId !== storeId) return;
  for (const [id, offset] of Object.entries(stored.acknowledged)) acknowledged.set(id, offset);
  connection.histories = new Map([...acknowledged.keys()].map((id) => [id, allShards]));
  connection.isReplicated = true;
  connection.isStrict ||= stored.isStrict;
}

/** Stores what this replica knows of the histories. After a kill the file lacks the offsets of the last seconds. */
async function storeHistories(connection: Connection): Promise<void> {
  const { historyFile, storeId, histories, acknowledged, isReplicated, isStrict, log } = connection;
  if (historyFile === undefined || !isReplicated) return;
  const offsets = Object.fromEntries([...histories.keys()].map((id) => [id, acknowledged.get(id) ?? -1]));
  const text = JSON.stringify({ storeId, isStrict, acknowledged: offsets } satisfies z.infer<typeof form>);
  try {
    await writeFile(`${historyFile}.new`, text, { mode: 0o600 });
    await rename(`${historyFile}.new`, historyFile);
  } catch (error) {
    log.warn("the histories of Redis cannot be stored: a failover while this replica is stopped is not noticed", {
      error,
    });
  }
}
