import { type Keys, shardOf, shards } from "./keys.ts";
import type { Link } from "./link.ts";
import { number, replyList, text, texts } from "./reply.ts";

/** What a look at a live tree found. */
export interface Look {
  root: string;
  /** The names of calls that no living lease holds. */
  lapsed: string[];
  /** Grants that wait to be written to their workspace's slot. */
  outbox: number;
}

/** The trees in which something is open. */
export type Live = ReturnType<typeof createLive>;

/**
 * Lists the trees in which something is open, as `root:generation`, by when to look at them again. An entry is written
 * before the step that makes a tree live. Who removes one first raises the tree's generation: a step that was prepared for
 * the old one then finds another, and writes its entry anew.
 */
export function createLive({ link, keys }: { link: Link; keys: Keys }) {
  const allShards = Array.from({ length: shards }, (_, shard) => keys.live(shard));
  // The generations that are known to be listed, in order of use.
  const listed = new Map<string, number>();
  link.onLost(() => listed.clear());

  function remember(root: string, generation: number): void {
    listed.delete(root);
    listed.set(root, generation);
    const oldest = listed.size > treesKept ? listed.keys().next().value : undefined;
    if (oldest !== undefined) listed.delete(oldest);
  }

  async function listUnder(root: string, generation: number): Promise<number> {
    await link.command("zadd", keys.live(shardOf(root)), "LT", link.now(), `${root}:${generation}`);
    remember(root, generation);
    return generation;
  }

  async function look(entry: string, limit: number): Promise<Look | undefined> {
    const at = entry.lastIndexOf(":");
    const root = entry.slice(0, at);
    const generation = Number(entry.slice(at + 1));
    const shard = keys.live(shardOf(root));
    const { tree, leases, deadlines, outbox } = keys.tree(root);
    // The later look is agreed on before this one, so that whoever wants it sooner meanwhile gets it.
    await link.command("zadd", shard, "XX", link.now() + lookMs, entry);
    const [now, due, waiting, lapsed] = replyList(
      await link.run("look_at_tree", { tree, leases, deadlines, outbox }, { limit }),
    );
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
    /** Lists the tree, under the generation that it was last known to have. */
    enter: async (root: string) => listed.get(root) ?? (await listUnder(root, 0)),
    /** Lists it under another generation. */
    reenter: listUnder,

    /** Has the tree looked at by that time, if that can be arranged; else it is a few seconds later. */
    async sooner(root: string, time: number): Promise<void> {
      const generation = listed.get(root);
      if (time >= link.now() + lookMs || generation === undefined) return;
      const entry = `${root}:${generation}`;
      await link.command("zadd", keys.live(shardOf(root)), "LT", time, entry).catch(() => null);
    },

    /** Looks at all trees in which something may be due, and removes those in which nothing is open. */
    async lookAtDue(limit: number): Promise<Look[]> {
      const looks = await Promise.all((await entries(link.now())).map((entry) => look(entry, limit)));
      return looks.filter((found) => found !== undefined);
    },

    /** The roots of the trees in which something may be due. */
    due: async () => roots(await entries(link.now())),
    /** The roots of all live trees. */
    all: async () => roots(await entries("+inf")),
  };
}

// Every live tree is looked at this often, by one replica or another.
const lookMs = 5_000;
const treesKept = 50_000;
