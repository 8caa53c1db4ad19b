import type { Logger } from "../../core/logger.ts";
import { connectRedis } from "./client.ts";
import type { RedisDoorbell } from "./doorbell.ts";
import type { Keys } from "./keys.ts";
import type { Link } from "./link.ts";
import type { Live } from "./live.ts";
import { number, replyList, texts } from "./reply.ts";
import type { Trees } from "./trees.ts";
import type { RedisAddress } from "./url.ts";

/**
 * Hears what other replicas did, over one connection, and rings for it. Messages can be lost, so what somebody listens to
 * is also looked at every two seconds. Resolves when it hears; what it returns stops it.
 */
export async function listenToReplicas(options: {
  address: RedisAddress;
  link: Link;
  keys: Keys;
  trees: Trees;
  live: Live;
  doorbell: RedisDoorbell;
  replica: string;
  log: Logger;
}): Promise<() => Promise<void>> {
  const { address, link, keys, trees, live, doorbell, replica, log } = options;
  const subscriber = connectRedis(address, "news", log);
  // How often each session, and each tree, had news when it was looked at.
  const seen = new Map<string, number>();
  // When all were looked at last, as long as somebody listens to all.
  let allSeen: number | undefined;

  subscriber.on("message", (_channel: string, message: string) => {
    const [from, news]: [string, (string | number)[]] = JSON.parse(message);
    if (from === replica) return;
    for (let index = 0; index < news.length; index += 2) doorbell.ring(String(news[index]), Number(news[index + 1]));
  });

  /** What a session had before the first look at it is not news, unless it came `since` then. */
  async function lookAt(sessionId: string, since = Number.POSITIVE_INFINITY): Promise<void> {
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
    if (before === undefined && active < since) doorbell.begin(sessionId, seq);
    else doorbell.catchUp(sessionId, seq);
  }

  async function lookAtTree(root: string, since: number | undefined): Promise<void> {
    const { tree, sessions } = keys.tree(root);
    const news = number(await link.command("hget", tree, "news"));
    if (seen.get(tree) === news) return;
    seen.set(tree, news);
    await Promise.all(texts(await link.command("zrange", sessions, 0, -1)).map((id) => lookAt(id, since)));
  }

  async function look(): Promise<void> {
    const wanted = doorbell.wanted();
    if (wanted.length === 0) seen.clear();
    await Promise.all(wanted.filter((id) => id !== undefined).map((id) => lookAt(id)));
    const started = link.now();
    const since = allSeen;
    allSeen = wanted.includes(undefined) ? started - clockSlackMs : undefined;
    if (allSeen !== undefined) await Promise.all((await live.all()).map((root) => lookAtTree(root, since)));
  }

  let stopped = false;
  let looking: Promise<void> = Promise.resolve();
  let timer = setTimeout(repeat, pollMs);
  function repeat(): void {
    looking = look()
      .catch((error: unknown) => log.warn("news could not be looked for and are again", { error }))
      .finally(() => {
        if (!stopped) timer = setTimeout(repeat, pollMs);
      });
  }

  await subscriber.subscribe(keys.news);
  return async () => {
    stopped = true;
    clearTimeout(timer);
    await looking;
    subscriber.disconnect();
  };
}

const pollMs = 1_500;
const clockSlackMs = 5_000;
