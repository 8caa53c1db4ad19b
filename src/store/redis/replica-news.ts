import { Redis } from "ioredis";
import type { OrphanedCall } from "../../call/ports.ts";
import { setNewest } from "../../core/bounded-map.ts";
import type { CallRef } from "../../core/call-ref.ts";
import type { Logger } from "../../core/logger.ts";
import { within } from "../../core/within.ts";
import { callName, type HeldCalls, type HeldLease } from "./call-records.ts";
import { connectRedis, leaveRedis } from "./client.ts";
import type { Keys } from "./keys.ts";
import type { Link } from "./link.ts";
import type { Live } from "./live.ts";
import type { LoggedEvent, RedisLog } from "./log.ts";
import { type Followed, maxKnown, type RedisNews } from "./news.ts";
import { inPortions, number, replyList, text, texts } from "./reply.ts";
import type { Trees } from "./trees.ts";
import type { RedisAddress } from "./url.ts";

/**
 * A message between replicas: the sender; news (session, first new sequence number, session, ...); and what replicas of older
 * versions ignore.
 */
type Message = readonly [from: string, changes: readonly (string | number)[], more?: MoreNews];

interface MoreNews {
  /** A tree that is due to be checked. */
  readonly live?: string;
  /** Sessions that the sender follows; see `createFollowed`. */
  readonly follows?: readonly string[];
  /** The appended events, if they are small and another replica follows their session: session, sequence number, event, ... */
  readonly events?: readonly (string | number)[];
  /** The time of these events. */
  readonly time?: number;
  /** A table of which a record was changed. */
  readonly table?: string;
  /** Calls that the sender leaves unclaimed. */
  readonly unclaimed?: Parameters<UnclaimedNotices["receive"]>[0];
}

/**
 * Subscribes to the news of other replicas, over one connection, and publishes them here. Messages can be lost, so sessions
 * with subscribers are polled as well. Resolves once subscribed, or after a while without, with the function that ends it.
 */
export async function listenToReplicas(options: {
  address: RedisAddress;
  link: Link;
  keys: Keys;
  trees: Trees;
  live: Live;
  news: RedisNews;
  sessionLog: Pick<RedisLog, "remember" | "forgetEvents">;
  followed: Followed;
  unclaimed: UnclaimedNotices;
  /** The tables of records, by name. */
  tables: ReadonlyMap<string, { refresh(): Promise<void> }>;
  replica: string;
  log: Logger;
}): Promise<() => Promise<void>> {
  const { address, link, keys, trees, live, news, sessionLog, followed, unclaimed, tables, replica, log } = options;
  const subscriber = connectRedis(address, "news", log);
  // The change counters of each session and tree at the last poll.
  const seen = new Map<string, number>();
  // Time of the last poll of all sessions, while all have a subscriber.
  let allSeen: number | undefined;

  /** Asks the other replicas to send small events of a session that is followed here. */
  function follow(sessionId: string): void {
    if (!news.hasSubscriber(sessionId) || !followed.isDue(sessionId)) return;
    const message: Message = [replica, [], { follows: [sessionId] }];
    link.command("publish", keys.news, JSON.stringify(message)).catch(() => null);
  }

  subscriber.on("message", (_channel: string, text: string) => {
    const [from, changes, more = {}]: Message = JSON.parse(text);
    if (from === replica) return;
    if (more.live !== undefined) live.hint(more.live);
    // A failure is left to the next of the regular reads.
    void tables
      .get(more.table ?? "")
      ?.refresh()
      .catch(() => undefined);
    followed.add(more.follows ?? []);
    unclaimed.receive(more.unclaimed ?? []);
    if (!link.isStrict()) sessionLog.remember(more.time ?? 0, inPortions(more.events ?? [], 3).map(decodeLogged));
    for (let index = 0; index < changes.length; index += 2) {
      const sessionId = String(changes[index]);
      follow(sessionId);
      news.publish(sessionId, Number(changes[index + 1]));
    }
  });
  subscriber.on("close", () => {
    // Messages may be lost until it is connected again, and those before may be of a Redis that has lost its last writes.
    live.forget();
    sessionLog.forgetEvents();
  });

  /** Polls a session. Events before its first poll are not news, unless they came `since` then. */
  async function pollSession(sessionId: string, since = Number.POSITIVE_INFINITY): Promise<void> {
    const state = await trees.find(sessionId, async (root) => {
      const found = replyList(
        await link.command("hmget", keys.tree(root).session(sessionId), "seq", "rings", "active"),
      );
      return found[0] === null ? undefined : found.map(number);
    });
    const [seq = 0, rings = 0, active = 0] = state ?? [];
    const before = seen.get(sessionId);
    setNewest(seen, sessionId, seq + rings, maxKnown);
    if (before === seq + rings) return;
    if (before === undefined && active < since) news.begin(sessionId, seq);
    else news.catchUp(sessionId, seq);
  }

  async function pollTree(root: string, since: number | undefined): Promise<void> {
    const { tree, sessions } = keys.tree(root);
    const count = number(await link.command("hget", tree, "news"));
    if (seen.get(tree) === count) return;
    setNewest(seen, tree, count, maxKnown);
    await Promise.all(texts(await link.command("zrange", sessions, 0, -1)).map((id) => pollSession(id, since)));
  }

  async function poll(): Promise<void> {
    // Without a question a connection that has fallen silent would stay so. The driver pings only Redis and Sentinel this way.
    if (subscriber instanceof Redis && subscriber.status === "ready") void subscriber.ping().catch(() => {});
    const wanted = news.subscribed();
    if (wanted.length === 0) seen.clear();
    await Promise.all(wanted.filter((id) => id !== undefined).map((id) => pollSession(id)));
    const started = link.now();
    const since = allSeen;
    allSeen = wanted.includes(undefined) ? started - clockSlackMs : undefined;
    if (allSeen !== undefined) await Promise.all((await live.known()).map((root) => pollTree(root, since)));
  }

  let stopped = false;
  let polling: Promise<void> = Promise.resolve();
  let timer = setTimeout(repeat, pollMs);
  function repeat(): void {
    polling = poll()
      .catch((error: unknown) => log.warn("polling for news failed; it will be retried", { error }))
      .finally(() => {
        if (!stopped) timer = setTimeout(repeat, pollMs);
      });
  }

  const subscribed = subscriber.subscribe(keys.news).catch((error: unknown) => {
    if (!stopped) log.warn("other replicas are not heard at once; their news are polled", { error });
  });
  await within(subscribeMs, subscribed, () => undefined);
  return async () => {
    stopped = true;
    clearTimeout(timer);
    await polling;
    leaveRedis(subscriber);
  };
}

const pollMs = 1_500;
/** Time that a start waits for the subscription: the polls replace it until then. */
const subscribeMs = 5_000;
const clockSlackMs = 5_000;

/** Decodes an event of a message, whose text has one character for each byte. */
const decodeLogged = ([sessionId, seq, event]: readonly (string | number)[]): LoggedEvent => ({
  sessionId: String(sessionId),
  seq: Number(seq),
  bytes: Buffer.from(String(event), "latin1"),
});

/** Creates the operations on leases. */
export function createLeases(options: {
  link: Link;
  keys: Keys;
  live: Live;
  held: HeldCalls;
  /** Moves the grants in a tree's outbox to their slots. */
  drainOutbox: (root: string) => Promise<void>;
}) {
  const { link, keys, live, held, drainOutbox } = options;

  /** Runs a script on all calls that an owner holds; returns the calls that it named, and the rest. */
  async function onHeld(script: "renew_leases" | "release_calls", owner: string, values: object) {
    const results = await Promise.all(
      held.portions(owner).map(async (calls) => {
        const tree = keys.tree(calls[0]?.ref.root ?? "");
        const names = calls.map(({ ref }) => callName(ref));
        const callKeys = Object.fromEntries(names.map((name) => [`call ${name}`, tree.call(name)]));
        const [result] = replyList(
          await link.run(script, { leases: tree.leases, ...callKeys }, { ...values, owner, names }),
        );
        const named = new Set(texts(result));
        return Map.groupBy(calls, ({ ref }) => named.has(callName(ref)));
      }),
    );
    const all = (named: boolean): HeldLease[] => results.flatMap((groups) => groups.get(named) ?? []);
    return { named: all(true), rest: all(false) };
  }

  /**
   * Finds the orphans among calls of a tree: meanwhile some may have ended or have an owner again. A call whose asks are settled needs no
   * lease to lapse: earlier versions settled without ending the wait.
   */
  async function orphansAmong(root: string, names: readonly string[]): Promise<OrphanedCall[]> {
    const states = replyList(await link.read("read_leases", names.map(keys.tree(root).call)));
    return names.flatMap((name, index) => {
      const [lease, started, settled, ended, collectMs, mark, until, definition, owner, waiting] = replyList(
        states[index],
      );
      const isStarted = text(started) === "1";
      if (lease === undefined || text(ended) !== "") return [];
      const delegated = text(collectMs) !== "";
      const isLeft = !isStarted && !delegated && text(until) === "" && text(owner) === "" && text(waiting) === "";
      const isSettled = isLeft && number(settled) > 0;
      if (number(lease) > link.now() && !isSettled) return [];
      const orphan = { ref: toRef(root, name), started: isStarted, delegated };
      const remote = text(mark) === "" ? {} : { remote: JSON.parse(text(mark)) };
      const queued = text(until) === "" ? {} : { queued: { definitionId: text(definition), until: number(until) } };
      return [
        {
          ...orphan,
          since: isSettled ? number(settled) : Math.max(number(lease), number(settled)),
          ...remote,
          ...queued,
        },
      ];
    });
  }

  return {
    async renew(owner: string, leaseMs: number): Promise<CallRef[]> {
      const { named, rest } = await onHeld("renew_leases", owner, { leaseMs });
      for (const call of rest) held.drop(owner, call);
      return named.map(({ ref }) => ref);
    },

    async release(owner: string): Promise<void> {
      const { named } = await onHeld("release_calls", owner, {});
      for (const call of named) held.drop(owner, call);
      await Promise.all([...new Set(named.map(({ ref }) => ref.root))].map((root) => live.sooner(root, link.now())));
    },

    /** Lists all orphaned calls, the longest orphaned first. */
    async orphans(): Promise<OrphanedCall[]> {
      const trees = await live.checkDue();
      await Promise.all(trees.filter(({ outbox }) => outbox > 0).map(({ root }) => drainOutbox(root)));
      const found = await Promise.all(
        trees.flatMap(({ root, calls }) => inPortions(calls, portion).map((names) => orphansAmong(root, names))),
      );
      return found.flat().sort((one, other) => one.since - other.since);
    },
  };
}

const portion = 500;

function toRef(root: string, name: string): CallRef {
  const at = name.indexOf(":");
  return { root, sessionId: name.slice(0, at), callId: name.slice(at + 1) };
}

/** Notices of calls that a replica leaves unclaimed. */
export type UnclaimedNotices = ReturnType<typeof createUnclaimedNotices>;

/** Creates the notices of one replica. They use the channel of the news. */
export function createUnclaimedNotices({ link, keys, replica }: { link: Link; keys: Keys; replica: string }) {
  const listeners = new Set<(call: CallRef) => void>();
  return {
    async announce(calls: readonly CallRef[]): Promise<void> {
      const named = calls.map(({ root, sessionId, callId }) => [root, sessionId, callId]);
      await link.command("publish", keys.news, JSON.stringify([replica, [], { unclaimed: named }]));
    },
    /** Handles the calls of another replica's message. */
    receive(named: readonly (readonly [root: string, sessionId: string, callId: string])[]): void {
      for (const [root, sessionId, callId] of named)
        for (const listener of listeners) listener({ root, sessionId, callId });
    },
    subscribe(listener: (call: CallRef) => void): () => void {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
  };
}
