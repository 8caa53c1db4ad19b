import { mkdtemp } from "node:fs/promises";
import { join } from "node:path";
import { Redis } from "ioredis";
import type { Processes } from "./processes.ts";

/** A Redis of the bench. */
export interface RedisServer {
  readonly pid: number;
  /** What replicas are configured with. */
  readonly url: string;
  /** A connection of the bench's own; it ends with the server. */
  readonly client: Redis;
}

/** Starts an empty one on a unix socket, which writes to disk as the one in compose.yaml does. */
export async function startRedis(processes: Processes): Promise<RedisServer> {
  const folder = await mkdtemp(join(processes.folder, "redis-"));
  const path = join(folder, "r.sock");
  const { pid } = await processes.run(
    "redis-server",
    [
      ...["--port", "0", "--unixsocket", path, "--dir", folder, "--save", ""],
      ...["--appendonly", "yes", "--appendfsync", "everysec", "--maxmemory-policy", "noeviction"],
    ],
    /ready to accept connections/i,
    "Install it: apt-get install -y redis-server",
  );
  const client = new Redis({ path, retryStrategy: () => null });
  client.on("error", () => undefined); // Whoever waits for an answer is told.
  return { pid, url: `redis+unix://${path}`, client };
}
