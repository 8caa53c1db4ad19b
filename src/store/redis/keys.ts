import { createHash } from "node:crypto";
import { crc32 } from "node:zlib";

/** How many slots an index is spread over. */
export const shards = 64;

/** What is listed: sessions, their trees, grants, and trees that are gone and left their audit. */
export type ListingName = "sessions" | "trees" | "grants" | "audits";

/** The names of all keys of a store. No other file makes any. */
export type Keys = ReturnType<typeof createKeys>;

/** The keys of one session tree: they share the root's hash tag, so one script can touch all of them. */
export type TreeKeys = ReturnType<Keys["tree"]>;

/**
 * Makes the names. Every key has a TTL of about a month, which the sweep renews while it is in use, but for `storeId` (it
 * names the contents), `live` and `listing` (hints, removed when what they name is gone) and the grants of a workspace
 * (they live until they expire or are revoked; then the sweep removes them).
 */
export function createKeys(prefix: string) {
  const slot = (tag: string) => `${prefix}:{${tag}}`;
  // Each step needs some of them.
  const trees = new Map<string, ReturnType<typeof keysOfTree>>();
  return {
    /** STRING in each shard: the id of the store's contents. */
    storeId: (shard: number) => `${slot(String(shard))}:store`,
    /** ZSET of a shard: `root:generation` of the trees in which something is open, by when to look at them. */
    live: (shard: number) => `${slot(String(shard))}:live`,
    /** ZSET of a shard: the ids of all there are, by when they came (microseconds). */
    listing: (name: ListingName, shard: number) => `${slot(String(shard))}:${name}`,
    /** ZSET: the sessions of one owner, likewise. */
    owned: (owner: string) => `${slot(digest(`owner ${owner}`))}:sessions`,
    /** STRING: the root of a session's tree. */
    root: (sessionId: string) => `${slot(sessionId)}:root`,
    /** STRING: where a grant is. */
    grantPlace: (id: string) => `${slot(id)}:place`,
    /** STRING: the digest of the policy that the replicas judge by. */
    policy: `${slot("policy")}:policy`,
    /** The channel on which replicas tell each other of news. */
    news: `${prefix}:news`,

    tree(root: string) {
      const known = trees.get(root);
      if (known !== undefined) return known;
      if (trees.size === treesKept) trees.clear();
      const made = keysOfTree(slot(root));
      trees.set(root, made);
      return made;
    },

    /** The wider grants of one workspace: HASHes of grants, when they were revoked and last used, and a SET of the trees that use one. */
    workspace(workspace: string) {
      const name = (rest: string) => `${slot(digest(`workspace ${workspace}`))}:${rest}`;
      return {
        grants: name("grants"),
        revoked: name("revoked"),
        used: name("used"),
        users: (id: string) => name(`users:${id}`),
      };
    },
  };
}

function keysOfTree(slot: string) {
  const name = (rest: string) => `${slot}:${rest}`;
  const single = {
    /** HASH: generation, versions of rules and asks, how often it had news. */
    tree: name("tree"),
    /** ZSET: the sessions, by when they came. */
    sessions: name("sessions"),
    /** ZSETs: open calls by the end of their lease, ended ones by their end; members are `session:call`. */
    leases: name("leases"),
    ended: name("ended"),
    /** HASHes by ask: the event that told of it, the one that told how it ended, the name of its call. */
    asked: name("asked"),
    settled: name("settled"),
    callOf: name("call-of"),
    /** ZSETs: open asks by when they came, and by deadline. */
    asks: name("asks"),
    deadlines: name("deadlines"),
    /** HASHes: grants of this tree, when they were revoked, when last used; and wider ones on the way to their own slot. */
    grants: name("grants"),
    revoked: name("revoked"),
    used: name("used"),
    outbox: name("outbox"),
    /** SET: nobody but the tree itself uses its grants. */
    users: name("users"),
    /** STREAM: the chain of decisions. It is kept for 90 days after the last one, longer than the tree. */
    audit: name("audit"),
    /** HASH: canonical path to SHA-256. */
    reads: name("reads"),
    /** ZSET: outputs by the last write. HASH: their lengths. */
    outputs: name("outputs"),
    lengths: name("lengths"),
  };
  const perSession = {
    /** HASH: the session as it was created, and the state of its log. */
    session: (id: string) => name(`session:${id}`),
    /** HASH: what tools keep for it, by name. */
    state: (id: string) => name(`state:${id}`),
    /** STREAM of its events. */
    log: (id: string) => name(`log:${id}`),
    /** ZSETs: its calls, and those that are open, by their first number. */
    calls: (sessionId: string) => name(`calls:${sessionId}`),
    open: (sessionId: string) => name(`open:${sessionId}`),
  };
  return {
    ...single,
    ...perSession,
    /** HASH: one call, named `session:call`. */
    call: (call: string) => name(`call:${call}`),
    /** STRING: one piece of an output. */
    chunk: (output: string, index: number) => name(`output:${output}:${index}`),
    /** STRING: what an operation was answered. */
    operation: (id: string) => name(`operation:${id}`),
    /** All of them but those of calls, outputs and operations, and the audit. */
    lasting: (sessionIds: readonly string[]) => [
      ...Object.values(single).filter((key) => key !== single.audit),
      ...sessionIds.flatMap((id) => Object.values(perSession).map((key) => key(id))),
    ],
  };
}

const treesKept = 1_000;

/** The shard that an id belongs to. */
export const shardOf = (id: string): number => crc32(id) % shards;

/** What people may have put braces into cannot be a hash tag as it is. */
const digest = (text: string) => createHash("sha256").update(text).digest("base64url").slice(0, 22);
