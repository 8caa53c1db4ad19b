import { type DescMessage, fromJsonString } from "@bufbuild/protobuf";
import type { ToolMemory } from "../../call/ports.ts";
import type { RecordTable } from "../../core/record-table.ts";
import { StoreUnusable } from "../errors.ts";
import { type RecordKind, type RecordOf, readableJson } from "../record-tables.ts";
import type { Keys } from "./keys.ts";
import type { Link } from "./link.ts";
import { createMarkedHash, type TablePlace } from "./marked-hash.ts";
import { text } from "./reply.ts";

/** Opens a table in a hash of Redis, where all replicas share it. Records of other replicas are known after `refresh`. */
export async function createRedisTable<Schema extends DescMessage>(
  place: TablePlace,
  { name, schema, one, command }: RecordKind<Schema>,
): Promise<RecordTable<RecordOf<Schema>>> {
  const hash = createMarkedHash(place, name);
  let read = "";
  let records: readonly RecordOf<Schema>[] = [];

  function readRecord(json: string): RecordOf<Schema> {
    try {
      return fromJsonString(schema, json, { ignoreUnknownFields: true }) as RecordOf<Schema>;
    } catch (cause) {
      const fact = cause instanceof Error ? cause.message : String(cause);
      throw new StoreUnusable(
        `the hash ${hash.key} in Redis has a record that is no ${one} (${fact}); remove it, then run \`${command}\` again`,
        { cause },
      );
    }
  }

  async function refresh(): Promise<void> {
    const found = await hash.readChanged();
    if (found === undefined || found.join("\n") === read) return;
    records = found.map(readRecord);
    read = found.join("\n");
  }

  await refresh();
  return {
    current: () => records,
    refresh,
    async put(record) {
      await hash.put(record.id, JSON.stringify(readableJson(schema, record)));
      await refresh();
    },
    async update(id, next) {
      for (;;) {
        const found = await hash.get(id);
        const made = next(found === undefined ? undefined : readRecord(found));
        if (made === undefined) return made;
        if (!(await hash.replace(id, found ?? "", JSON.stringify(readableJson(schema, made))))) continue;
        await refresh();
        return made;
      }
    },
    async remove(id) {
      const found = await hash.get(id);
      if (found === undefined) return undefined;
      const isRemoved = await hash.remove(id);
      await refresh();
      return isRemoved ? readRecord(found) : undefined;
    },
  };
}

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
