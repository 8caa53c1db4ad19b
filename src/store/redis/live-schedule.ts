import { shardOf, shards } from "./keys.ts";

/** Interval at which some replica checks each live tree, and each replica reads the list of them. */
export const checkIntervalMs = 5_000;

/** An entry of the list of live trees. */
interface Scheduled {
  root: string;
  time: number;
}

/** One replica's knowledge of the list of live trees: the time at which each shard is due, and the roots. */
export function createSchedule() {
  const dueAt = new Float64Array(shards);
  const roots = new Set<string>();
  let scannedAt = Number.NEGATIVE_INFINITY;
  let scanning: Promise<void> | undefined;

  function note(shard: number, time: number): void {
    dueAt[shard] = Math.min(dueAt[shard] ?? 0, time);
  }

  /** Reads a shard; meanwhile notes count for the time after it. A shard that cannot be read stays due. */
  async function visit(shard: number, read: (shard: number) => Promise<number | undefined>): Promise<void> {
    dueAt[shard] = Number.POSITIVE_INFINITY;
    try {
      note(shard, (await read(shard)) ?? Number.POSITIVE_INFINITY);
    } catch (error) {
      dueAt[shard] = 0;
      throw error;
    }
  }

  async function readAll(read: (shard: number) => Promise<Scheduled[]>): Promise<void> {
    roots.clear();
    const visits = Array.from(dueAt, (_, shard) =>
      visit(shard, async () => {
        const found = await read(shard);
        for (const { root } of found) roots.add(root);
        return found.reduce((first, { time }) => Math.min(first, time), Number.POSITIVE_INFINITY);
      }),
    );
    await Promise.all(visits);
  }

  const due = (now: number) => [...dueAt.keys()].filter((shard) => (dueAt[shard] ?? 0) <= now);
  const forget = () => {
    scannedAt = Number.NEGATIVE_INFINITY;
  };

  return {
    /** Takes a tree as due at a time. */
    hint(root: string, time: number): void {
      roots.add(root);
      note(shardOf(root), time);
    },

    forget,

    /** Reads all shards once per interval. Concurrent callers share one scan. */
    async scan(now: number, read: (shard: number) => Promise<Scheduled[]>): Promise<void> {
      if (scanning === undefined && now >= scannedAt + checkIntervalMs) {
        scannedAt = now;
        scanning = readAll(read).finally(() => {
          scanning = undefined;
        });
        scanning.catch(forget);
      }
      await scanning;
    },

    due,

    /** Visits the shards that are due; `read` resolves to the time at which its shard is due next. */
    async visitDue(now: number, read: (shard: number) => Promise<number | undefined>): Promise<void> {
      await Promise.all(due(now).map((shard) => visit(shard, read)));
    },

    roots: () => [...roots],
  };
}
