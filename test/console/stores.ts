import { afterAll, beforeAll } from "vitest";
import { shareOf } from "../breadth.ts";
import { createService, type Service, type ServiceOptions, unconfined } from "../e2e/service.ts";
import { type RedisServers, startRedis } from "../store/redis-server.ts";

/** The stores that a service can use. */
export const stores = ["SQLite", "Redis"] as const;
type StoreName = (typeof stores)[number];

/** The stores for the pages that follow calls as they change, one in each suite. Other pages do not depend on the store. */
export const testedStores = shareOf<StoreName>(stores, ["Redis"]);

/** Starts one service on a store for all tests of a block; it keeps its address when it restarts. */
export function useServiceOn(store: StoreName, { settings = "" }: ServiceOptions = {}): () => Service {
  let redis: RedisServers | undefined;
  let service: Service | undefined;
  beforeAll(async () => {
    if (store === "Redis") redis = await startRedis();
    const flags: string[] = [];
    const top = redis === undefined ? "" : `store = "${redis.url}"\n`;
    service = createService({ settings: `${top}lease_ms = 5000\n${settings}\n${unconfined}`, flags });
    await service.start();
    flags.push("--listen", new URL(service.url).host);
  });
  afterAll(async () => {
    await service?.close();
    await redis?.stop();
  });
  return () => {
    if (service === undefined) throw new Error("the service was not started");
    return service;
  };
}
