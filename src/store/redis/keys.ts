import { createHash } from "node:crypto";
import { crc32 } from "node:zlib";

/** Number of slots that an index is spread over. */
export const shards = 64;
export const allShards: readonly number[] = Array.from({ length: shards }, (_, shard) => shard);

/** The listings: sessions, their trees, grants, and removed trees whose audit is retained. */
export type ListingName = "sessions" | "trees" | "grants" | "audits";

/** The names of all keys of a store. No other file builds key names. */
export type Keys = ReturnType<typeof createKeys>;

/**
 * Creates the names. No key of a record has a TTL, since Redis' clock may jump: the sweep removes records by the time of the store.
 * Only what is needed for moments has one: answers of operations, the policy, pointers to what is not created yet.
 */
export function createKeys(prefix: string, database = 0) {
  const slot = (tag: string) => `${prefix}:{${tag}}`;
  // Cached, since each step needs some of them.
  const trees = new Map<string, ReturnType<typeof keysOfTree>>();
  return {
    /** STRING in each shard: the store id. */
    storeId: (shard: number) => `${slot(String(shard))}:store`,
    /** ZSET of a shard: `root:generation` of live trees, by the time of their next check. */
    live: (shard: number) => `${slot(String(shard))}:live`,
    /** ZSET of a shard: ids, by creation time in microseconds. */
    listing: (name: ListingName, shard: number) => `${slot(String(shard))}:${name}`,
    /** ZSET: the sessions of one owner, by creation time in microseconds. */
    owned: (owner: string) => `${slot(digest(`owner ${owner}`))}:sessions`,
    /** STRING: the root of the tree of a session or an ask. */
    root: (id: string) => `${slot(id)}:root`,
    /** STRING: the place of a grant, as JSON. */
    grantPlace: (id: string) => `${slot(id)}:place`,
    /** HASH: the number of the store's format, and the version that raised it. Replicas of format 1 fail at it, since they hold a STRING here. */
    format: `${slot("policy")}:policy`,
    /** STRING: the digest of the policy that the replicas agree on. */
    policy: `${slot("policy")}:agreement`,
    /** ZSET: digests that others replaced, by that time. */
    replacedPolicies: `${slot("policy")}:replaced`,
    /** HASH: the generation of each shard that was raised. ZSET: the replicas, by the time of their last announcement. */
    generations: `${slot("histories")}:generations`,
    replicas: `${slot("histories")}:replicas`,
    /** HASH: a counter that replicas raise while they run, the time of its last raise, and that of the last restore that was found by it. */
    counter: `${slot("histories")}:counter`,
    /** STRING: the copies that each master should have. */
    copies: `${slot("histories")}:copies`,
    /** HASH: reports of the replicas on the history of a server, and the decision. */
    agreement: (history: string) => `${slot("histories")}:agreement:${history}`,
    /** HASH: how far the time of the store is behind the clock of each server, and when that was checked. */
    clock: `${slot("clock")}:clock`,
    /** ZSET: names of the last notices, by the time of their opening. */
    recentNotices: `${slot("notices")}:recent`,
    /** HASH: the lease of a receiver of the audit, and what it has lost. HASH: its cursors by root. ZSET: roots of chains with later records, by time. */
    exports: (receiver: string) => {
      const name = (rest: string) => `${slot("exports")}:${receiver}:${rest}`;
      return { receiver: name("receiver"), cursors: name("cursors"), pending: name("pending") };
    },
    /** STRING: a value that each readiness probe changes. */
    probe: `${slot("probe")}:probe`,
    /** STRING in the slot of a key: written before copies are counted. */
    confirmation: (key: string) => `${slot(hashTag(key))}:confirmation`,
    /** HASH: the records of a table by id, as JSON. It has no TTL: people add and remove them. STRING: a mark that each change replaces. */
    records: (table: string) => `${slot(table)}:${table}`,
    recordsMark: (table: string) => `${slot(table)}:mark`,
    /** HASH: worker processes, each with its connection and replica. ZSET: the replicas that announce them, by the end of that. */
    workers: `${slot("workers")}:workers`,
    workerReplicas: `${slot("workers")}:replicas`,
    /** The channel for news between replicas. The databases of a Redis share its channels. */
    news: database === 0 ? `${prefix}:news` : `${prefix}:news:${database}`,

    tree(root: string) {
      const known = trees.get(root);
      if (known !== undefined) return known;
      if (trees.size === maxTrees) trees.clear();
      const made = keysOfTree(slot(root));
      trees.set(root, made);
      return made;
    },

    /** Wider grants of one workspace. HASHes by grant: the grant, time of revocation, time of last use, time of the confirmation after a restore, uses where they are limited. SET per grant: the trees that use it. */
    workspace(workspace: string) {
      const name = (rest: string) => `${slot(digest(`workspace ${workspace}`))}:${rest}`;
      return {
        grants: name("grants"),
        revoked: name("revoked"),
        used: name("used"),
        confirmed: name("confirmed"),
        uses: name("uses"),
        users: (id: string) => name(`users:${id}`),
      };
    },
  };
}

function keysOfTree(slot: string) {
  const name = (rest: string) => `${slot}:${rest}`;
  const single = {
    /** HASH: generation, versions of rules and asks, number of changes with news, last link of the audit. */
    tree: name("tree"),
    /** ZSET: the sessions, by creation time. */
    sessions: name("sessions"),
    /** ZSETs: open calls by the end of their lease, ended ones by their end; members are `session:call`. */
    leases: name("leases"),
    ended: name("ended"),
    /** HASHes by ask: its opening event, its settlement event, the name of its call. */
    asked: name("asked"),
    settled: name("settled"),
    callOf: name("call-of"),
    /** ZSETs: open asks by opening time, and by deadline. */
    asks: name("asks"),
    deadlines: name("deadlines"),
    /** HASH: the notices, named `ask channel` or `ask channel recipient`. ZSET: those to deliver, by the time from which on they may be claimed. HASH by ask: the rests of the names. */
    notices: name("notices"),
    noticeDue: name("notice-due"),
    notified: name("notified"),
    /** HASHes by grant: the grants of this tree, time of revocation, time of last use, time of the confirmation after a restore, uses where they are limited; and wider grants on the way to their own slot. */
    grants: name("grants"),
    revoked: name("revoked"),
    used: name("used"),
    confirmed: name("confirmed"),
    uses: name("uses"),
    outbox: name("outbox"),
    /** SET: users of the tree's grants, which can only be the tree itself. */
    users: name("users"),
    /** STREAM: the chain of decisions, each retained longer than the tree. */
    audit: name("audit"),
    /** HASH: SHA-256 by canonical path. */
    reads: name("reads"),
    /** ZSET: outputs by the time of the last write. HASH: their lengths. */
    outputs: name("outputs"),
    lengths: name("lengths"),
  };
  const perSession = {
    /** HASH: the session as created, and the state of its log. */
    session: (id: string) => name(`session:${id}`),
    /** HASH: values of tools, by name. */
    state: (id: string) => name(`state:${id}`),
    /** STREAM: the event log. */
    log: (id: string) => name(`log:${id}`),
    /** ZSETs: all calls and open calls, by the sequence number of their first event. */
    calls: (sessionId: string) => name(`calls:${sessionId}`),
    open: (sessionId: string) => name(`open:${sessionId}`),
  };
  return {
    ...single,
    ...perSession,
    /** HASH: one call, named `session:call`. */
    call: (call: string) => name(`call:${call}`),
    /** STRING: one chunk of an output. */
    chunk: (output: string, index: number) => name(`output:${output}:${index}`),
    /** STRING: the answer of an operation. */
    operation: (id: string) => name(`operation:${id}`),
    /** Lists all keys except those of calls, outputs and operations, and the audit. */
    lasting: (sessionIds: readonly string[]) => [
      ...Object.values(single).filter((key) => key !== single.audit),
      ...sessionIds.flatMap((id) => Object.values(perSession).map((key) => key(id))),
    ],
  };
}

const maxTrees = 1_000;

/** Returns the hash tag of a key that was built here. */
const hashTag = (key: string) => key.slice(key.indexOf("{") + 1, key.indexOf("}"));

/** Returns the slot of a key in a cluster: CRC16 (XMODEM) of its hash tag. */
export function slotOf(key: string): number {
  let crc = 0;
  for (const byte of Buffer.from(hashTag(key))) {
    crc ^= byte << 8;
    for (let bit = 0; bit < 8; bit++) crc = (crc & 0x80_00 ? (crc << 1) ^ 0x10_21 : crc << 1) & 0xff_ff;
  }
  return crc % slotCount;
}

/** Slots of a cluster. */
const slotCount = 16_384;

/** Returns the shard of a slot: as many slots in a row for each. */
export const shardOfSlot = (slot: number): number => Math.floor((slot * shards) / slotCount);

/** Returns the shard of the slot in which the keys of a session tree are. */
export const shardOfTree = (root: string): number => shardOfSlot(slotOf(`{${root}}`));

/** Returns the shard of an id. */
export const shardOf = (id: string): number => crc32(id) % shards;

/** Hashes text that may contain braces, which a hash tag cannot contain. */
const digest = (text: string) => createHash("sha256").update(text).digest("base64url").slice(0, 22);
