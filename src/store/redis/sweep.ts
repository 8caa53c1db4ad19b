import type { Grant } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import type { Retention } from "../../call/ports.ts";
import type { Logger } from "../../core/logger.ts";
import { DamagedRecord, unlessDamaged } from "../parts.ts";
import type { Damage } from "../refusals.ts";
import {
  countRemoved,
  dayMs,
  logRetentionMs,
  partRetentionMs,
  type RemovedCounts,
  recordRetentionMs,
  removedInWords,
} from "../retention.ts";
import { callName, ids } from "./call-records.ts";
import { decodeRedisPart, encodeTombstone } from "./events.ts";
import type { RedisExports } from "./exports.ts";
import type { GrantSlots } from "./grant-slots.ts";
import type { RedisAudit } from "./log.ts";
import { chunkCount } from "./outputs.ts";
import { bytes, inPortions, number, pairs, replyList, text, texts } from "./reply.ts";
import type { RedisSessions } from "./sessions.ts";
import type { RedisCallContext } from "./steps.ts";

/** State that the sweep needs. */
interface SweepContext extends Omit<TreeSweepContext, "held"> {
  readonly slots: GrantSlots;
  readonly log: Logger;
}

/**
 * Creates the function that removes records past their retention. No key of a record has a TTL: Redis' clock may jump, and the time of
 * the store does not.
 */
export function createRedisSweep(options: SweepContext): Retention["sweep"] {
  let isFirst = true;
  return async () => {
    const held: HeldAudit = { bytes: 0, since: Number.POSITIVE_INFINITY };
    const context = { ...options, held };
    const { sessions, slots, audit, log } = context;
    const outputs: { root: string; id: string }[] = [];
    const removed: RemovedCounts = {};
    for await (const roots of sessions.rootListing.all()) {
      for (const root of roots) {
        const swept = await sweepUnlessDamaged(sweepTree(context, root, removed, isFirst), context);
        outputs.push(...(swept ?? []));
      }
    }
    for await (const grantIds of slots.listing.all()) {
      for (const id of grantIds) await sweepUnlessDamaged(sweepGrant(context, id, removed, isFirst), context);
    }
    await audit.sweep(async (root) => trimAudit(context, root, removed), context.exports.forget);
    if (isFirst && held.bytes > 0) log.info(growthOf(held, options.auditMs, context.link.now()));
    isFirst = false;
    removed.outputs = outputs.length;
    const words = removedInWords(removed);
    if (words !== "") log.info(`removed after their retention time: ${words}`);
    return { outputs };
  };
}

/** Awaits a part of the sweep. Damage in it is logged and leaves it as it is; the other parts go on. */
async function sweepUnlessDamaged<T>(
  part: Promise<T>,
  { damage }: Pick<SweepContext, "damage">,
): Promise<T | undefined> {
  try {
    return await part;
  } catch (error) {
    if (!(error instanceof DamagedRecord)) throw error;
    damage.refusal(error);
    return undefined;
  }
}

/** Removes a grant that has been dead for long, or a listed id without a grant. */
async function sweepGrant(
  { link, keys, slots }: Pick<SweepContext, "link" | "keys" | "slots">,
  id: string,
  removed: RemovedCounts,
  isFirst: boolean,
): Promise<void> {
  const place = await slots.placeOf(id);
  const grant = place && (await slots.load(id, place));
  const before = link.now() - recordRetentionMs;
  const isOld = (time: number) => time > 0 && time <= before;
  const isUsedUp = ({ times, left, lastUsed }: Grant) => times > 0 && left === 0 && isOld(lastUsed);
  if (
    place !== undefined &&
    grant !== undefined &&
    !isOld(grant.revoked) &&
    !isOld(grant.expires) &&
    !isUsedUp(grant)
  ) {
    // Versions before this one set a TTL.
    if (isFirst) await link.command("persist", keys.grantPlace(id));
    return;
  }
  const entered = (await slots.listing.placeOf(id)) ?? 0;
  if (grant === undefined && entered / 1_000 > link.now() - dayMs) return;
  if (place !== undefined && grant !== undefined) {
    const slot = slots.slotOf(id, place);
    await link.command("hdel", slot.grants, id);
    await link.command("hdel", slot.revoked, id);
    await link.command("hdel", slot.used, id);
    await link.command("hdel", slot.confirmed, id);
    await link.command("hdel", slot.uses, id);
    if (place.workspace !== undefined) await link.command("del", slot.users);
    countRemoved(removed, "grants", 1);
  }
  await slots.listing.remove(id);
  await link.command("del", keys.grantPlace(id));
}

/** State that the sweep of a tree needs. */
interface TreeSweepContext extends Pick<RedisCallContext, "link" | "keys" | "trees" | "records"> {
  readonly sessions: RedisSessions;
  readonly audit: RedisAudit;
  readonly damage: Damage;
  /** Retention of the audit, and the one of records that a receiver has not accepted. */
  readonly auditMs: number;
  readonly auditMaxMs: number;
  readonly exports: RedisExports;
  readonly held: HeldAudit;
}

/** The audit that a sweep leaves: its memory, estimated from the first decisions of each tree, and the time of its oldest decision. */
interface HeldAudit {
  bytes: number;
  since: number;
}

/** Describes how far the audit grows. It lies in the memory of Redis, so an operator plans for it. */
function growthOf({ bytes: size, since }: HeldAudit, auditMs: number, now: number): string {
  const days = auditMs / dayMs;
  const perDay = size / Math.max(1, (now - since) / dayMs);
  const inWords = (of: number) => `${(of / 1_048_576).toFixed(1)} MiB`;
  return `the audit takes about ${inWords(size)} of the memory of Redis; at ${inWords(perDay)} a day it grows to ${inWords(perDay * days)} in the ${days} days for which it is retained (audit_days)`;
}

/** Removes a tree's records past their retention and counts them; returns outputs past their retention. */
async function sweepTree(
  context: TreeSweepContext,
  root: string,
  removed: RemovedCounts,
  /** True at the first sweep of a process: records of versions before this one have TTLs. */
  removesTtls: boolean,
): Promise<{ root: string; id: string }[]> {
  const { link, keys, sessions, audit } = context;
  const tree = keys.tree(root);
  const sessionIds = texts(await link.command("zrange", tree.sessions, 0, -1));
  if (sessionIds.length === 0) return await unlistEmpty(context, root);
  await buryCalls(context, root, removed);
  await dropCalls(context, root, removed);
  // What an open request names stays, and so do the events before it.
  const isAsked = number(await link.command("zcard", tree.asks)) > 0;
  if (!isAsked) await dropLogs(context, root, sessionIds, removed);
  await trimAudit(context, root, removed);
  const found = await Promise.all(sessionIds.map((id) => sessions.port.getSession(id)));
  const owners = new Set(found.flatMap((session) => session?.owner ?? []));
  if (await dropTree(context, root, sessionIds)) {
    await audit.listRemoved(root);
    await unlist(context, root, sessionIds, owners);
    countRemoved(removed, "trees", 1);
    return [];
  }
  if (removesTtls) await removeTtls(context, root, sessionIds, owners);
  if (isAsked) return [];
  const stale = texts(await link.command("zrangebyscore", tree.outputs, "-inf", link.now() - partRetentionMs));
  return stale.map((id) => ({ root, id }));
}

/** Lists the names of calls of a tree that ended at or before a time. */
async function endedBefore({ link, keys }: TreeSweepContext, root: string, before: number): Promise<string[]> {
  return texts(await link.command("zrangebyscore", keys.tree(root).ended, "-inf", before));
}

/** Replaces old ended calls by tombstones. */
async function buryCalls(context: TreeSweepContext, root: string, removed: RemovedCounts): Promise<void> {
  const { link, keys, records } = context;
  const { call: callKey, asked, settled, callOf, notices, noticeDue, notified } = keys.tree(root);
  const ofAsks = { asked, settled, callOf, notices, noticeDue, notified };
  const before = link.now() - partRetentionMs;
  const names = await endedBefore(context, root, before);
  for (const some of inPortions(names, portion)) {
    const calls = await records.named(root, some);
    await Promise.all(
      calls.map(async (call) => {
        if (call.has("expired")) return;
        const name = callName({ sessionId: call.text("session"), callId: call.text("callId") });
        const part = call.bytes("part");
        // A damaged part stays: the rest of the tree has to be swept.
        const tombstone = unlessDamaged(() => encodeTombstone(decodeRedisPart(part)), context.damage.refusal);
        if (tombstone === undefined) return;
        // Before the call, which names them, so that a sweep that ends here finds them again.
        const pointers = [...ids(call.text("asks")), ...(call.has("assignment") ? [call.text("assignment")] : [])];
        for (const id of pointers) await link.command("unlink", keys.root(id));
        await link.run("bury_call", { call: callKey(name), ...ofAsks }, { before }, { tombstone });
        countRemoved(removed, "results", 1);
      }),
    );
  }
}

/** Removes old tombstones. */
async function dropCalls(context: TreeSweepContext, root: string, removed: RemovedCounts): Promise<void> {
  const { link, keys } = context;
  const tree = keys.tree(root);
  const before = link.now() - recordRetentionMs;
  for (const name of await endedBefore(context, root, before)) {
    const at = name.indexOf(":");
    const [sessionId, callId] = [name.slice(0, at), name.slice(at + 1)];
    const names = { call: tree.call(name), calls: tree.calls(sessionId), ended: tree.ended };
    await link.run("drop_call", names, { name, callId, before });
    countRemoved(removed, "tombstones", 1);
  }
}

/** Removes the logs of idle sessions. */
async function dropLogs(
  { link, keys }: TreeSweepContext,
  root: string,
  sessionIds: readonly string[],
  removed: RemovedCounts,
): Promise<void> {
  const { session, log } = keys.tree(root);
  const before = link.now() - logRetentionMs;
  await Promise.all(
    sessionIds.map(async (id) => {
      const [result] = replyList(await link.run("drop_log", { session: session(id), log: log(id) }, { before }));
      if (text(result) === "dropped") countRemoved(removed, "logs", 1);
    }),
  );
}

/** Bytes of an entry of the stream without its content: two hashes, a time, the names of four fields. */
const entryBytes = 120;

/** Removes decisions from the beginning of a tree's chain; the rest of the chain stays valid. Waits for receivers, up to a limit. */
async function trimAudit(context: TreeSweepContext, root: string, removed: RemovedCounts): Promise<void> {
  const { link, keys, auditMs, auditMaxMs, exports, held } = context;
  const { audit } = keys.tree(root);
  const [before, end] = [link.now() - auditMs, link.now() - auditMaxMs];
  const accepted = await exports.acceptedOf(root);
  const acceptedByAll = Math.min(...accepted.map(({ seq }) => seq));
  for (;;) {
    const page = replyList(await link.command("xrange", audit, "-", "+", "COUNT", portion)).map(replyList);
    const old = page.flatMap(([id, entry]) => {
      const [time, seq] = [number(replyList(entry ?? null)[1]), Number.parseInt(text(id), 10)];
      return time <= end || (time <= before && seq <= acceptedByAll) ? [{ id: text(id), seq }] : [];
    });
    if (old.length > 0) {
      await link.command("xdel", audit, ...old.map(({ id }) => id));
      for (const { receiver, seq } of accepted)
        await exports.lose(receiver, old.filter((entry) => entry.seq > seq).length);
      countRemoved(removed, "decisions", old.length);
      continue;
    }
    const entries = page.map(([, entry]) => replyList(entry));
    if (entries[0] === undefined) return;
    held.since = Math.min(held.since, number(entries[0][1]));
    const size = entries.reduce((sum, entry) => sum + entryBytes + (bytes(entry[7])?.length ?? 0), 0);
    held.bytes += (size / entries.length) * number(await link.command("xlen", audit));
    return;
  }
}

/** Removes a tree that contains nothing but idle sessions; returns false if it is in use. */
async function dropTree(context: TreeSweepContext, root: string, sessionIds: readonly string[]): Promise<boolean> {
  const { link, keys } = context;
  const { sessions, leases, ended, outbox, session, lasting } = keys.tree(root);
  const rest = [...lasting(sessionIds), ...(await outputChunks(context, root))];
  const names = Object.fromEntries([
    ...sessionIds.map((id) => [`session ${id}`, session(id)]),
    ...rest.map((key, index) => [`rest ${index + 1}`, key]),
  ]);
  const values = { ids: sessionIds, count: rest.length, before: link.now() - recordRetentionMs };
  const [result] = replyList(await link.run("drop_tree", { sessions, leases, ended, outbox, ...names }, values));
  return text(result) === "dropped";
}

/** Lists the keys of all output chunks of a tree. */
async function outputChunks({ link, keys }: TreeSweepContext, root: string): Promise<string[]> {
  const { lengths, chunk } = keys.tree(root);
  return pairs((await link.hashes(lengths))[0]).flatMap(([id, length]) =>
    Array.from({ length: chunkCount(number(length)) }, (_, index) => chunk(id, index)),
  );
}

/** Removes the sessions of a removed tree from the listings, and the pointers to them. */
async function unlist(
  { link, keys, trees, sessions: { listing, rootListing } }: TreeSweepContext,
  root: string,
  sessionIds: readonly string[],
  owners: ReadonlySet<string>,
): Promise<void> {
  for (const id of sessionIds) {
    trees.forget(id);
    for (const owner of owners) await link.command("zrem", keys.owned(owner), id);
    await listing.remove(id);
    await link.command("unlink", keys.root(id));
  }
  await rootListing.remove(root);
}

/** Removes a listed root without a session from the listing, unless it may just be created. */
async function unlistEmpty({ link, audit, sessions: { rootListing } }: TreeSweepContext, root: string): Promise<[]> {
  const entered = (await rootListing.placeOf(root)) ?? 0;
  if (entered / 1_000 > link.now() - dayMs) return [];
  await audit.listRemoved(root);
  await rootListing.remove(root);
  return [];
}

/** Removes the TTLs that versions before this one have set on what a tree uses. */
async function removeTtls(
  context: TreeSweepContext,
  root: string,
  sessionIds: readonly string[],
  owners: ReadonlySet<string>,
): Promise<void> {
  const { link, keys } = context;
  const { leases, call, lasting, audit } = keys.tree(root);
  const open = texts(await link.command("zrange", leases, 0, -1));
  const leading = [...sessionIds.map(keys.root), ...[...owners].map(keys.owned)];
  const chunks = await outputChunks(context, root);
  const used = [...lasting(sessionIds), audit, ...chunks, ...open.map(call), ...leading];
  await Promise.all(used.map((key) => link.command("persist", key)));
}

const portion = 50;
