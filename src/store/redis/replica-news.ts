import { Redis } from "ioredis";
import type { Logger } from "../../core/logger.ts";
import { connectRedis, leaveRedis } from "./client.ts";
import type { Followed } from "./followed.ts";
import type { Keys } from "./keys.ts";
import type { Link } from "./link.ts";
import type { Live } from "./live.ts";
import type { LoggedEvent, RedisLog } from "./log.ts";
import type { RedisNews } from "./news.ts";
import { inThrees, number, replyList, texts } from "./reply.ts";
import type { Trees } from "./trees.ts";
import type { UnclaimedNotices } from "./unclaimed.ts";
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
  replica: string;
  log: Logger;
}): Promise<() => Promise<void>> {
  const { address, link, keys, trees, live, news, sessionLog, followed, unclaimed, replica, log } = options;
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
    followed.add(more.follows ?? []);
    unclaimed.receive(more.unclaimed ?? []);
    if (!link.isStrict()) sessionLog.remember(more.time ?? 0, inThrees(more.events ?? []).map(decodeLogged));
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
    seen.set(sessionId, seq + rings);
    if (before === seq + rings) return;
    if (before === undefined && active < since) news.begin(sessionId, seq);
    else news.catchUp(sessionId, seq);
  }

  async function pollTree(root: string, since: number | undefined): Promise<void> {
    const { tree, sessions } = keys.tree(root);
    const count = number(await link.command("hget", tree, "news"));
    if (seen.get(tree) === count) return;
    seen.set(tree, count);
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
  await Promise.race([subscribed, new Promise((resolve) => setTimeout(resolve, subscribeMs).unref())]);
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
