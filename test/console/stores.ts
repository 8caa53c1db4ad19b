import { afterAll, beforeAll } from "vitest";
import { createService, type Service, type ServiceOptions, unconfined } from "../e2e/service.ts";
import { type RedisServers, startRedis } from "../store/redis-server.ts";

/** Both stores that a service may have. */
export const stores = ["SQLite", "Redis"] as const;

/** One service on that store, at an address that it keeps when it is started again, for all tests of a block. */
export function useServiceOn(store: (typeof stores)[number], { settings = "" }: ServiceOptions = {}): () => Service {
  let redis: RedisServers | undefined;
  let service: Service | undefined;
  beforeAll(async () => {
    if (store === "Redis") redis = await startRedis();
    const flags: string[] = [];
    const top = redis === undefined ? "" : `store = "${redis.url}"\n`;
    service = createService({ settings: `${top}lease_ms = 2000\n${settings}\n${unconfined}`, flags });
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
