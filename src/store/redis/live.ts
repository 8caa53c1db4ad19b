import { type Keys, shardOf, shards } from "./keys.ts";
import type { Link } from "./link.ts";
import { number, replyList, text, texts } from "./reply.ts";

/** Findings of a check of a live tree. */
export interface LiveTree {
  root: string;
  /** Names of calls without a live lease. */
  lapsed: string[];
  /** Number of grants to move to their workspace's slot. */
  outbox: number;
}

/** The live trees: those with open calls or asks. */
export type Live = ReturnType<typeof createLive>;

/**
 * Lists live trees as `root:generation`, by the time of their next check. An entry is written before the step that makes a
 * tree live. Before an entry is removed, the tree's generation is raised: a step that was prepared for the old generation
 * then finds another one, and writes its entry again.
 */
export function createLive({ link, keys }: { link: Link; keys: Keys }) {
  const allShards = Array.from({ length: shards }, (_, shard) => keys.live(shard));
  // The generations known to be listed, in order of use.
  const listed = new Map<string, number>();
  link.onLost(() => listed.clear());

  function remember(root: string, generation: number): void {
    listed.delete(root);
    listed.set(root, generation);
    const oldest = listed.size > maxTrees ? listed.keys().next().value : undefined;
    if (oldest !== undefined) listed.delete(oldest);
  }

  async function listUnder(root: string, generation: number): Promise<number> {
    await link.command("zadd", keys.live(shardOf(root)), "LT", link.now(), `${root}:${generation}`);
    remember(root, generation);
    return generation;
  }

  async function check(entry: string): Promise<LiveTree | undefined> {
    const at = entry.lastIndexOf(":");
    const root = entry.slice(0, at);
    const generation = Number(entry.slice(at + 1));
    const shard = keys.live(shardOf(root));
    const { tree, leases, deadlines, outbox } = keys.tree(root);
    // The next check is scheduled before this one, so that a concurrent request for an earlier check is not lost.
    await link.command("zadd", shard, "XX", link.now() + checkIntervalMs, entry);
    const [now, due, waiting, lapsed] = replyList(await link.run("look_at_tree", { tree, leases, deadlines, outbox }));
    const idle = number(due) < 0 && number(waiting) === 0;
    if (text(now) !== String(generation) || idle) {
      const gone =
        text(now) !== String(generation) ||
        text(await link.run("retire_tree", { tree, leases, outbox }, { generation })) === "retired";
      if (gone) await link.command("zrem", shard, entry);
      if (gone && listed.get(root) === generation) listed.delete(root);
      return undefined;
    }
    remember(root, generation);
    await link.command("zadd", shard, "XX", "LT", Math.max(0, number(due)), entry);
    return { root, lapsed: texts(lapsed), outbox: number(waiting) };
  }

  async function entries(until: number | "+inf"): Promise<string[]> {
    const found = await Promise.all(allShards.map((key) => link.command("zrangebyscore", key, "-inf", until)));
    return found.flatMap(texts);
  }

  const roots = (found: readonly string[]) => [
    ...new Set(found.map((entry) => entry.slice(0, entry.lastIndexOf(":")))),
  ];

  return {
    /** Lists the tree under its last known generation. */
    enter: async (root: string) => listed.get(root) ?? (await listUnder(root, 0)),
    /** Lists the tree under another generation. */
    reenter: listUnder,

    /** Schedules a check by that time if possible; otherwise the check follows a few seconds later. */
    async sooner(root: string, time: number): Promise<void> {
      const generation = listed.get(root);
      if (time >= link.now() + checkIntervalMs || generation === undefined) return;
      const entry = `${root}:${generation}`;
      await link.command("zadd", keys.live(shardOf(root)), "LT", time, entry).catch(() => null);
    },

    /** Checks all trees that are due, and removes those that are no longer live. */
    async checkDue(): Promise<LiveTree[]> {
      const checked = await Promise.all((await entries(link.now())).map(check));
      return checked.filter((found) => found !== undefined);
    },

    /** Returns the roots of the trees that are due. */
    due: async () => roots(await entries(link.now())),
    /** Returns the roots of all live trees. */
    all: async () => roots(await entries("+inf")),
  };
}

// Interval at which some replica checks each live tree.
const checkIntervalMs = 5_000;
const maxTrees = 50_000;
