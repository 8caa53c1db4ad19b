import { StoreUnusable } from "../errors.ts";
import type { Client } from "./client.ts";
import { masters } from "./client.ts";

/** Refuses a Redis that is too old, or that may evict keys. */
export async function checkServers(client: Client): Promise<void> {
  for (const node of masters(client)) {
    const facts = `${await node.info("server")}${await node.info("memory")}`;
    const fact = (name: string) => new RegExp(`^${name}:(.*?)\\r?$`, "m").exec(facts)?.[1] ?? "";
    const where = node.options.path ?? `${node.options.host}:${node.options.port}`;
    const version = fact("redis_version");
    if (Number.parseInt(version, 10) < 7) {
      throw new StoreUnusable(
        `the Redis at ${where} has version ${version}: the store needs 7.0 or later; name another Redis in the URL`,
      );
    }
    const policy = fact("maxmemory_policy");
    if (policy !== "noeviction") {
      throw new StoreUnusable(
        `the Redis at ${where} has maxmemory-policy ${policy}, so it may evict open calls when memory is short: run CONFIG SET maxmemory-policy noeviction and set the same in its configuration`,
      );
    }
  }
}
