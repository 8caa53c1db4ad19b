import { mkdtemp, realpath, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, beforeEach } from "vitest";
import { type RedisServers, startRedis } from "../store/redis-server.ts";
import { createService, type Service, unconfined } from "./service.ts";

/** Three services that share one Redis and one workspace. */
export interface Replicas {
  redis: RedisServers;
  workspace: string;
  all: readonly [Service, Service, Service];
}

/**
 * Three replicas for all tests of a file; those that a test ended are back before the next one. Their leases are short, and longer than a
 * busy machine stops a process.
 */
export function useReplicas(settings = ""): () => Replicas {
  let replicas: Replicas | undefined;
  beforeAll(async () => {
    const redis = await startRedis();
    const workspace = await realpath(await mkdtemp(join(tmpdir(), "toolgate-shared-")));
    const create = () =>
      createService({
        settings: `store = "${redis.url}"\nlease_ms = 5000\n${unconfined}${settings}`,
        flags: ["--workspace", workspace],
      });
    replicas = { redis, workspace, all: [create(), create(), create()] };
  });
  beforeEach(async () => {
    await Promise.all(get().all.map((replica) => replica.pid ?? replica.start()));
  });
  afterAll(async () => {
    const { all, redis, workspace } = get();
    await Promise.all(all.map((replica) => replica.close()));
    await redis.stop();
    await rm(workspace, { recursive: true, force: true, maxRetries: 10, retryDelay: 50 });
  });

  function get(): Replicas {
    if (replicas === undefined) throw new Error("the replicas were not started");
    return replicas;
  }
  return get;
}
