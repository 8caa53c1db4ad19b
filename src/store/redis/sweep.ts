import type { CallStore } from "../../call/ports.ts";
import { auditKept } from "../audit.ts";
import type { RedisAudit } from "./audit.ts";
import { callName, type RedisCallRecords } from "./call-records.ts";
import { decodeRedisPart } from "./events.ts";
import type { RedisGrants } from "./grants.ts";
import { day, logKept, partsKept, recordsKept } from "./kept.ts";
import type { Keys } from "./keys.ts";
import type { Link } from "./link.ts";
import { chunkCount } from "./outputs.ts";
import { encodeTombstone } from "./parts.ts";
import { number, pairs, replyList, text, texts } from "./reply.ts";
import type { RedisSessions } from "./sessions.ts";
import type { Trees } from "./trees.ts";

/** Makes the function that removes what is past its time, and renews the TTLs of what is not. */
export function createRedisSweep(options: {
  link: Link;
  keys: Keys;
  trees: Trees;
  sessions: RedisSessions;
  records: RedisCallRecords;
  grants: RedisGrants;
  audit: RedisAudit;
}): CallStore["sweep"] {
  const { link, keys, trees, sessions, records, grants, audit } = options;

  /** Names of calls of a tree that ended at or before a time. */
  const endedBefore = async (root: string, before: number) =>
    texts(await link.command("zrangebyscore", keys.tree(root).ended, "-inf", before));

  async function buryCalls(root: string): Promise<void> {
    const tree = keys.tree(root);
    const before = link.now() - partsKept;
    const names = await endedBefore(root, before);
    for (let from = 0; from < names.length; from += portion) {
      const calls = await records.named(root, names.slice(from, from + portion));
      await Promise.all(
        calls.map(async (call) => {
          if (call.has("expired")) return;
          const name = callName({ sessionId: call.text("session"), callId: call.text("callId") });
          const { asked, settled, callOf } = tree;
          const tombstone = encodeTombstone(decodeRedisPart(call.bytes("part")));
          await link.run("bury_call", { call: tree.call(name), asked, settled, callOf }, { before }, { tombstone });
        }),
      );
    }
  }

  async function dropCalls(root: string): Promise<void> {
    const tree = keys.tree(root);
    const before = link.now() - recordsKept;
    for (const name of await endedBefore(root, before)) {
      const at = name.indexOf(":");
      const [sessionId, callId] = [name.slice(0, at), name.slice(at + 1)];
      const names = { call: tree.call(name), calls: tree.calls(sessionId), ended: tree.ended };
      await link.run("drop_call", names, { name, callId, before });
    }
  }

  async function dropLogs(root: string, sessionIds: readonly string[]): Promise<void> {
    const { session, log } = keys.tree(root);
    const before = link.now() - logKept;
    await Promise.all(sessionIds.map((id) => link.run("drop_log", { session: session(id), log: log(id) }, { before })));
  }

  /** Removes decisions from the beginning of a tree's chain; what follows stays as it is. */
  async function trimAudit(root: string): Promise<void> {
    const { audit } = keys.tree(root);
    const before = link.now() - auditKept;
    for (;;) {
      const page = replyList(await link.command("xrange", audit, "-", "+", "COUNT", portion)).map(replyList);
      const old = page.filter(([, entry]) => number(replyList(entry)[1]) <= before).map(([id]) => text(id));
      if (old.length === 0) return;
      await link.command("xdel", audit, ...old);
    }
  }

  /** The pieces of all outputs that a tree still has. */
  async function chunksOf(root: string): Promise<string[]> {
    const { lengths, chunk } = keys.tree(root);
    return pairs((await link.hashes(lengths))[0]).flatMap(([id, length]) =>
      Array.from({ length: chunkCount(number(length)) }, (_, index) => chunk(id, index)),
    );
  }

  async function dropTree(root: string, sessionIds: readonly string[]): Promise<boolean> {
    const { sessions: ofTree, leases, ended, outbox, session, lasting } = keys.tree(root);
    const rest = [...lasting(sessionIds), ...(await chunksOf(root))];
    const names = Object.fromEntries([
      ...sessionIds.map((id) => [`session ${id}`, session(id)]),
      ...rest.map((key, index) => [`rest ${index + 1}`, key]),
    ]);
    const values = { ids: sessionIds, count: rest.length, before: link.now() - recordsKept };
    const [result] = replyList(
      await link.run("drop_tree", { sessions: ofTree, leases, ended, outbox, ...names }, values),
    );
    return text(result) === "dropped";
  }

  /** Takes the sessions of a tree that is gone off the lists; what points to them goes by its TTL. */
  async function unlist(root: string, sessionIds: readonly string[], owners: ReadonlySet<string>): Promise<void> {
    for (const id of sessionIds) {
      trees.forget(id);
      for (const owner of owners) await link.command("zrem", keys.owned(owner), id);
      await sessions.listing.remove(id);
    }
    await sessions.rootListing.remove(root);
  }

  /** Renews all TTLs of a tree, once a day. */
  async function renew(root: string, sessionIds: readonly string[], owners: ReadonlySet<string>): Promise<void> {
    const { tree, leases, call, lasting } = keys.tree(root);
    if (number(await link.command("pttl", tree)) > recordsKept) return;
    const open = texts(await link.command("zrange", leases, 0, -1));
    const leading = [...sessionIds.map(keys.root), ...[...owners].map(keys.owned)];
    const renewed = [...lasting(sessionIds), ...open.map(call), ...leading];
    await Promise.all(renewed.map((key) => link.command("pexpire", key, recordsKept + day)));
  }

  async function sweepTree(root: string): Promise<{ root: string; id: string }[]> {
    const tree = keys.tree(root);
    const sessionIds = texts(await link.command("zrange", tree.sessions, 0, -1));
    await buryCalls(root);
    await dropCalls(root);
    await dropLogs(root, sessionIds);
    await trimAudit(root);
    const found = await Promise.all(sessionIds.map((id) => sessions.get(id)));
    const owners = new Set(found.flatMap((session) => session?.owner ?? []));
    if (sessionIds.length > 0 && (await dropTree(root, sessionIds))) {
      await audit.keep(root);
      await unlist(root, sessionIds, owners);
      return [];
    }
    await renew(root, sessionIds, owners);
    const stale = texts(await link.command("zrangebyscore", tree.outputs, "-inf", link.now() - partsKept));
    return stale.map((id) => ({ root, id }));
  }

  /** Removes a grant that is long dead, and an entry that nothing stands behind. */
  async function sweepGrant(id: string): Promise<void> {
    const place = await grants.placeOf(id);
    const grant = place && (await grants.load(id, place));
    const before = link.now() - recordsKept;
    const isOld = (time: number) => time > 0 && time <= before;
    if (place !== undefined && grant !== undefined && !isOld(grant.revoked) && !isOld(grant.expires)) {
      await link.command("pexpire", keys.grantPlace(id), recordsKept + day);
      return;
    }
    const entered = (await grants.listing.placeOf(id)) ?? 0;
    if (grant === undefined && entered / 1_000 > link.now() - day) return;
    if (place !== undefined && grant !== undefined) {
      const slot = grants.slotOf(id, place);
      await link.command("hdel", slot.grants, id);
      await link.command("hdel", slot.revoked, id);
      await link.command("hdel", slot.used, id);
      if (place.workspace !== undefined) await link.command("del", slot.users);
    }
    await grants.listing.remove(id);
    await link.command("del", keys.grantPlace(id));
  }

  return async () => {
    const outputs = [];
    for await (const roots of sessions.rootListing.all()) {
      for (const root of roots) outputs.push(...(await sweepTree(root)));
    }
    for await (const grantIds of grants.listing.all()) {
      for (const id of grantIds) await sweepGrant(id);
    }
    await audit.sweep();
    return { outputs };
  };
}

const portion = 50;
