import type { ToolMemory } from "../../call/ports.ts";
import type { Keys } from "./keys.ts";
import type { Link } from "./link.ts";
import { text } from "./reply.ts";

/** Stores values of tools in hashes of their tree. */
export function createRedisToolMemory({ link, keys }: { link: Link; keys: Keys }): ToolMemory {
  const get = async (hash: string, field: string) => text(await link.command("hget", hash, field)) || undefined;
  const set = async (hash: string, field: string, value: string) =>
    void (await link.run("keep_field", { hash }, { field, value }));

  return {
    getRead: (root, path) => get(keys.tree(root).reads, path),
    recordRead: (root, path, sha256) => set(keys.tree(root).reads, path, sha256),
    getState: ({ root, sessionId }, name) => get(keys.tree(root).state(sessionId), name),
    setState: ({ root, sessionId }, name, value) => set(keys.tree(root).state(sessionId), name, value),
  };
}
