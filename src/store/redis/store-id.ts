import { randomBytes } from "node:crypto";

/** The ids that the shards hold, as far as they hold one, and the ways to change them. */
export interface StoreIds {
  read(): Promise<(string | undefined)[]>;
  write(shard: number, id: string): Promise<void>;
  /** Changes what the first shard holds, if that is still what was seen; returns what it holds then. */
  decide(seen: string, id: string): Promise<string>;
}

/**
 * Finds the id that all shards hold. Where one lacks it, or has another, a part of the contents is not what it was (or this
 * is the first start): then all get a new one. The first shard decides; while a new id is being written it says so, and
 * whoever sees that writes the same.
 */
export async function establishStoreId(ids: StoreIds): Promise<string> {
  for (let attempt = 0; attempt < 20; attempt++) {
    const [first = "", ...others] = await ids.read();
    if (first !== "" && !first.startsWith(changing) && others.every((id) => id === first)) return first;
    const decided = first.startsWith(changing) ? first : await ids.decide(first, `${changing}${newStoreId()}`);
    if (!decided.startsWith(changing)) continue;
    const id = decided.slice(changing.length);
    await Promise.all(others.map((_, index) => ids.write(index + 1, id)));
    await ids.decide(decided, id);
  }
  throw new Error("the id of the Redis store keeps changing: is another program writing to its keys?");
}

const changing = "changing to ";
const newStoreId = () => `sto_${randomBytes(16).toString("hex")}`;
