import { randomBytes } from "node:crypto";

/** Access to the store ids of the shards. */
export interface StoreIds {
  read(): Promise<(string | undefined)[]>;
  write(shard: number, id: string): Promise<void>;
  /** Compares and sets the id of the first shard; returns its id afterwards. */
  decide(seen: string, id: string): Promise<string>;
}

/**
 * Finds the id that all shards share. If a shard lacks it or has another one, a part of the contents was lost (or this is the
 * first start): then all get a new id. The first shard decides; while a new id is being written it is marked as changing,
 * and every replica that sees the mark writes the same id.
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

/** Begins to replace the id that the caller has read; `establishStoreId` completes it. Another replica may have done so. */
export async function replaceStoreId({ decide }: StoreIds, seen: string): Promise<void> {
  await decide(seen, `${changing}${newStoreId()}`);
}

const changing = "changing to ";
const newStoreId = () => `sto_${randomBytes(16).toString("hex")}`;
