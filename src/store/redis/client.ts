import { Cluster, Redis } from "ioredis";
import type { Logger } from "../../core/logger.ts";
import { createRepeatedFailure } from "../../core/repeated-failure.ts";
import { StoreUnusable } from "../errors.ts";
import type { ConnectionOptions, RedisAddress } from "./url.ts";

/** A connection to Redis, or one to each node of a cluster. */
export type Client = Redis | Cluster;

/**
 * Connects, and reconnects when the connection is lost. For commands: a command that cannot be sent now, or is not answered in
 * time, fails at once; the driver retries nothing. For news: the driver subscribes again.
 */
export function connectRedis(address: RedisAddress, use: "commands" | "news", log: Logger): Client {
  const retryStrategy = (times: number) => Math.min(50 * times, 1_000);
  const strict = {
    autoResendUnfulfilledCommands: false,
    maxRetriesPerRequest: 0,
  };
  const options = {
    connectTimeout: 5_000,
    // A connection without a reply for this long is closed. Its pending commands fail, or for news are sent again.
    socketTimeout: 5_000,
    // A frozen server does not answer the end of a connection.
    disconnectTimeout: 200,
    reconnectOnError: (error: Error) => error.message.startsWith("READONLY"),
    ...(use === "commands" ? strict : { maxRetriesPerRequest: null }),
  };
  const queue = { enableOfflineQueue: use === "news" };
  const single = (own: ConnectionOptions): ConnectionOptions => ({
    ...options,
    ...own,
    ...queue,
    retryStrategy,
    sentinelRetryStrategy: retryStrategy,
    // Without it a sentinel that falls silent while it is asked for the master keeps the connection away for ever.
    sentinelCommandTimeout: 2_000,
    // Otherwise the connection stays at the old master until a sentinel demotes it, and all of that is lost.
    failoverDetector: own.sentinels !== undefined,
  });
  const client =
    address.kind === "cluster"
      ? new Cluster(address.nodes, {
          ...queue,
          redisOptions: { ...options, ...address.access },
          clusterRetryStrategy: retryStrategy,
        })
      : new Redis(single(address.options));
  logOutages(client, use, log);
  if (client instanceof Redis) reconnectAfterEnd(client);
  return client;
}

/** Disconnects for good. */
export function leaveRedis(client: Client): void {
  client.removeAllListeners("end");
  client.disconnect();
}

/** Waits for the replies under way, then disconnects for good. */
export async function quitRedis(client: Client): Promise<void> {
  client.removeAllListeners("end");
  await client.quit().catch(() => client.disconnect());
}

/**
 * Connects again where the driver stops trying: when a sentinel announces a failover while it looks for the master. A client whose
 * listener was removed stays disconnected.
 */
function reconnectAfterEnd(client: Redis): void {
  const ended = () => {
    setTimeout(() => {
      if (client.listeners("end").includes(ended) && client.status === "end") client.connect().catch(() => {});
    }, reconnectMs);
  };
  client.on("end", ended);
}

const reconnectMs = 50;

/** Logs that Redis does not answer, once and then each ten seconds, and that it answers again. */
function logOutages(client: Client, use: string, log: Logger): void {
  const outage = createRepeatedFailure<Error>((error, count) =>
    log.warn(`Redis cannot be reached (${factOf(error)}): the connection is tried again; check that Redis runs`, {
      reason: use,
      count,
    }),
  );
  client.on("error", outage.failed);
  client.on("ready", () => {
    if (outage.succeeded()) log.info("Redis can be reached again", { reason: use });
  });
}

/** Describes an error in a few words; one that collects others has no message. */
function factOf(error: Error): string {
  const [first = error] = error instanceof AggregateError ? error.errors : [];
  return first instanceof Error ? first.message || first.name : String(first);
}

/** Runs `watch` on the connection to every present and future node. */
export function eachNode(client: Client, watch: (node: Redis) => void): void {
  const nodes = client instanceof Redis ? [client] : client.nodes("all");
  nodes.forEach(watch);
  if (client instanceof Cluster) client.on("+node", watch);
}

/** Returns the connections to the master nodes. */
export function masters(client: Client): Redis[] {
  return client instanceof Redis ? [client] : client.nodes("master");
}

/** Creates the function to call before a command: all commands of one turn go out in one write to each node. */
export function createCork(client: Client): () => void {
  let isCorked = false;
  return () => {
    if (isCorked) return;
    isCorked = true;
    // A node that is not connected yet has no stream.
    const streams = masters(client).flatMap(({ stream }: { stream?: Redis["stream"] }) => stream ?? []);
    for (const stream of streams) stream.cork();
    process.nextTick(() => {
      isCorked = false;
      for (const stream of streams) stream.uncork();
    });
  };
}

/** Resolves when commands can be sent; rejects after a timeout, with the last error. */
export function whenReady(client: Client, timeoutMs: number): Promise<void> {
  if (client.status === "ready") return Promise.resolve();
  return new Promise((resolve, reject) => {
    let last: unknown;
    const remember = (error: unknown) => {
      last = error;
    };
    const done = () => {
      clearTimeout(timer);
      client.off("error", remember);
      client.off("ready", done);
      resolve();
    };
    const timer = setTimeout(() => {
      client.off("error", remember);
      client.off("ready", done);
      const why = last instanceof Error ? ` (${last.message})` : "";
      const next =
        "start it, or correct the URL of the store; of rediss:// check the authority (NODE_EXTRA_CA_CERTS names one more)";
      reject(new StoreUnusable(`Redis did not answer in ${timeoutMs / 1_000} s${why}: ${next}`, { cause: last }));
    }, timeoutMs);
    client.on("error", remember);
    client.on("ready", done);
  });
}
