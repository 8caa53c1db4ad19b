import { setNewest } from "../../core/bounded-map.ts";
import { type Keys, shardOf, shards } from "./keys.ts";
import type { Link } from "./link.ts";
import { withPlaces } from "./listing.ts";
import { number, replyList, text, texts } from "./reply.ts";

/** Findings of a check of a live tree. */
export interface LiveTree {
  root: string;
  /** Names of calls without a live lease; at the first check of all open calls. */
  calls: string[];
  /** Number of grants to move to their workspace's slot. */
  outbox: number;
}

/** The live trees: those with open calls or asks, or with notices to deliver. */
export type Live = ReturnType<typeof createLive>;

/**
 * Lists live trees as `root:generation`, by the time of their next check. An entry is written before the step that makes a
 * tree live. Before an entry is removed, the tree's generation is raised: a step that was prepared for the old generation
 * then finds another one, and writes its entry again.
 *
 * An idle replica reads the list once per interval and remembers when each shard is due. Entries that others add in between
 * are announced by a message to all replicas; a lost message delays the check until the next read.
 */
export function createLive({ link, keys, replica }: { link: Link; keys: Keys; replica: string }) {
  const allShards = Array.from({ length: shards }, (_, shard) => keys.live(shard));
  const schedule = createSchedule();
  // The generations known to be listed, in order of use.
  const listed = new Map<string, number>();
  // The live trees of which all calls were read once, not only those that are due: that finds what an earlier version left.
  const searched = new Set<string>();
  link.onLost(() => listed.clear());
  // Those of them that a Redis may lack which has lost its last writes: the next step of each tree lists it again.
  let uncertain = new Set<string>();
  link.onBreak(() => {
    uncertain = new Set(listed.keys());
  });
  link.onBreak(schedule.forget);

  const remember = (root: string, generation: number) => setNewest(listed, root, generation, maxTrees);

  async function listUnder(root: string, generation: number): Promise<number> {
    await link.write("zadd", keys.live(shardOf(root)), "LT", link.now(), `${root}:${generation}`);
    remember(root, generation);
    uncertain.delete(root);
    announce(root);
    return generation;
  }

  /** Notifies all replicas that a tree is due. Nothing waits for it, since it only saves time. */
  function announce(root: string): void {
    schedule.hint(root, link.now());
    const message = JSON.stringify([replica, [], { live: root }]);
    link.command("publish", keys.news, message).catch(() => null);
  }

  async function check(entry: string): Promise<LiveTree | undefined> {
    const root = rootOf(entry);
    const generation = Number(entry.slice(root.length + 1));
    const shard = keys.live(shardOf(root));
    const { tree, leases, deadlines, noticeDue, outbox } = keys.tree(root);
    // The next check is scheduled before this one, so that a concurrent request for an earlier check is not lost.
    await link.command("zadd", shard, "XX", link.now() + checkIntervalMs, entry);
    const names = { tree, leases, deadlines, noticeDue, outbox };
    const [now, due, waiting, calls] = replyList(await link.run("look_at_tree", names, { all: !searched.has(root) }));
    searched.add(root);
    const idle = number(due) < 0 && number(waiting) === 0;
    if (text(now) !== String(generation) || idle) {
      const gone =
        text(now) !== String(generation) ||
        text(await link.run("retire_tree", { tree, leases, noticeDue, outbox }, { generation })) === "retired";
      if (gone) await link.command("zrem", shard, entry);
      if (gone && searched.delete(root) && listed.get(root) === generation) listed.delete(root);
      return undefined;
    }
    remember(root, generation);
    await link.command("zadd", shard, "XX", "LT", Math.max(0, number(due)), entry);
    return { root, calls: texts(calls), outbox: number(waiting) };
  }

  const entriesUntil = async (shard: number, until: number): Promise<string[]> =>
    texts(await link.command("zrangebyscore", keys.live(shard), "-inf", until));

  /** Reads the whole list, unless that was done during the last interval. */
  const scan = () =>
    schedule.scan(link.now(), async (shard) => {
      const entries = withPlaces(texts(await link.command("zrange", keys.live(shard), 0, -1, "WITHSCORES")));
      return entries.map(({ id, place }) => ({ root: rootOf(id), time: place }));
    });

  /** Checks the entries of a shard that are due; resolves to the time of its next one. */
  async function checkShard(shard: number, found: (LiveTree | undefined)[][]): Promise<number | undefined> {
    found[shard] = await Promise.all((await entriesUntil(shard, link.now())).map(check));
    const [next] = withPlaces(texts(await link.command("zrange", keys.live(shard), 0, 0, "WITHSCORES")));
    return next?.place;
  }

  return {
    /** Lists the tree under its last known generation. */
    async enter(root: string): Promise<number> {
      const known = listed.get(root);
      return known === undefined || uncertain.has(root) ? await listUnder(root, known ?? 0) : known;
    },
    /** Lists the tree under another generation. */
    reenter: listUnder,
    /** Takes a tree as due, upon the message of another replica. */
    hint: (root: string) => schedule.hint(root, link.now()),
    /** Reads the whole list at the next check: messages may have been lost. */
    forget: schedule.forget,

    /** Schedules a check by that time if possible; otherwise the check follows a few seconds later. */
    async sooner(root: string, time: number): Promise<void> {
      const generation = listed.get(root);
      if (time >= link.now() + checkIntervalMs || generation === undefined) return;
      const entry = `${root}:${generation}`;
      await link.command("zadd", keys.live(shardOf(root)), "LT", time, entry).catch(() => null);
      if (time <= link.now()) announce(root);
      else schedule.hint(root, time);
    },

    /** Checks all trees that are due, and removes those that are no longer live. */
    async checkDue(): Promise<LiveTree[]> {
      await scan();
      const found: (LiveTree | undefined)[][] = [];
      await schedule.visitDue(link.now(), (shard) => checkShard(shard, found));
      return found.flat().filter((tree) => tree !== undefined);
    },

    /** Returns the roots of the trees that are due. */
    async due(): Promise<string[]> {
      await scan();
      const found = await Promise.all(schedule.due(link.now()).map((shard) => entriesUntil(shard, link.now())));
      return rootsOf(found.flat());
    },

    /** Returns the roots of all live trees. */
    async all(): Promise<string[]> {
      const found = await Promise.all(link.groups(allShards).map((some) => link.read("read_live", some)));
      return rootsOf(found.flatMap(texts));
    },

    /** Returns the roots of the live trees as of the last reads and messages. */
    async known(): Promise<string[]> {
      await scan();
      return schedule.roots();
    },
  };
}

const rootOf = (entry: string) => entry.slice(0, entry.lastIndexOf(":"));
const rootsOf = (entries: readonly string[]) => [...new Set(entries.map(rootOf))];

const maxTrees = 50_000;

/** Interval at which some replica checks each live tree, and each replica reads the list of them. */
const checkIntervalMs = 5_000;

/** An entry of the list of live trees. */
interface Scheduled {
  root: string;
  time: number;
}

/** One replica's knowledge of the list of live trees: the time at which each shard is due, and the roots. */
function createSchedule() {
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
