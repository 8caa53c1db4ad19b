import { mkdtemp } from "node:fs/promises";
import { join } from "node:path";
import { Redis } from "ioredis";
import type { Processes } from "./processes.ts";

/** A Redis of the bench. */
export interface RedisServer {
  readonly pid: number;
  /** The `store` of a replica's configuration. */
  readonly url: string;
  /** A connection for the bench; it ends with the server. */
  readonly client: Redis;
}

/**
 * Starts an empty one on a unix socket, which writes to disk as the one in compose.yaml does; with a port it can have copies, and be one
 * of the server at another port.
 */
export async function startRedis(
  processes: Processes,
  { port = 0, copyOf }: { port?: number; copyOf?: number } = {},
): Promise<RedisServer> {
  const folder = await mkdtemp(join(processes.folder, "redis-"));
  const path = join(folder, "r.sock");
  const { pid } = await processes.run(
    "redis-server",
    [
      ...["--port", `${port}`, "--bind", "127.0.0.1", "--unixsocket", path, "--dir", folder, "--save", ""],
      ...(copyOf === undefined ? [] : ["--replicaof", "127.0.0.1", `${copyOf}`]),
      ...["--appendonly", "yes", "--appendfsync", "everysec", "--maxmemory-policy", "noeviction"],
    ],
    /ready to accept connections/i,
    "Install it: apt-get install -y redis-server",
  );
  const client = new Redis({ path, retryStrategy: () => null });
  client.on("error", () => undefined); // Each command reports it to its caller.
  return { pid, url: `redis+unix://${path}`, client };
}
