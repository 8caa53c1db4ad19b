import type { Keys, ListingName } from "./keys.ts";
import { shardOf, shards } from "./keys.ts";
import type { Link } from "./link.ts";
import { number, texts } from "./reply.ts";

/** Ids in the order of their creation. */
export type Listing = ReturnType<typeof createListing>;

/** Creates a list of ids, spread over shards, so that no slot holds all of them. */
export function createListing({ link, keys, name }: { link: Link; keys: Keys; name: ListingName }) {
  const shardKey = (id: string) => keys.listing(name, shardOf(id));
  const allShards = Array.from({ length: shards }, (_, shard) => keys.listing(name, shard));

  return {
    /** Adds an id, or finds it; returns its place in the list: microseconds since the epoch. */
    enter: async (id: string) => number(await link.run("enter_listing", { shard: shardKey(id) }, { id })),

    /** Returns the place of an id; undefined if it is not listed. */
    async placeOf(id: string): Promise<number | undefined> {
      const place = await link.command("zscore", shardKey(id), id);
      return place === null ? undefined : number(place);
    },

    remove: async (id: string) => void (await link.command("zrem", shardKey(id), id)),

    /** Yields ids before a place, newest first. */
    async *newest(before: number | undefined, page: number): AsyncGenerator<string> {
      for (let end = before; ; ) {
        const max = end === undefined ? "+inf" : `(${end}`;
        const found = await Promise.all(
          allShards.map((key) => link.command("zrevrangebyscore", key, max, "-inf", "WITHSCORES", "LIMIT", 0, page)),
        );
        const entries = found.flatMap((reply) => withPlaces(texts(reply)));
        const next = entries.sort((one, other) => other.place - one.place).slice(0, page);
        for (const { id } of next) yield id;
        if (next.length < page) return;
        end = next.at(-1)?.place;
      }
    },

    /** Yields all ids, one shard at a time. */
    async *all(): AsyncGenerator<string[]> {
      for (const key of allShards) yield texts(await link.command("zrange", key, 0, -1));
    },
  };
}

/** Pairs ids with places, which alternate. */
export function withPlaces(entries: readonly string[]): { id: string; place: number }[] {
  return entries.flatMap((id, index) => (index % 2 === 0 ? [{ id, place: Number(entries[index + 1]) }] : []));
}
