import { setNewest } from "../../core/bounded-map.ts";
import type { ExportStore } from "../../reach/ports.ts";
import type { Keys } from "./keys.ts";
import type { Link } from "./link.ts";
import { number, type Reply, replyList, text, texts } from "./reply.ts";

/** The port of the export of the audit, with what steps and the sweep need. */
export type RedisExports = ReturnType<typeof createRedisExports>;

/**
 * Creates the cursors of the receivers of the audit. A replica lists a chain as pending before a step that appends to it, once in a
 * while; the export removes it from the list when that is long past and nothing is behind the cursor. What is not listed, since a
 * replica was killed or the receiver is new, the sweep lists.
 */
export function createRedisExports({ link, keys }: { link: Link; keys: Keys }, receivers: readonly string[]) {
  // By root, the time at which this replica listed it, in order of that time.
  const listed = new Map<string, number>();
  link.onBreak(() => listed.clear());

  async function list(root: string, of = receivers): Promise<void> {
    for (const receiver of of) await link.command("zadd", keys.exports(receiver).pending, "GT", link.now(), root);
  }

  const cursorsOf = async (receiver: string, roots: readonly string[]) =>
    replyList(await link.command("hmget", keys.exports(receiver).cursors, ...roots)).map(cursorOf);

  const port: ExportStore = {
    async claimExport(receiver, owner, leaseMs) {
      const { receiver: held } = keys.exports(receiver);
      const [result] = replyList(await link.run("claim_export", { receiver: held }, { owner, leaseMs }));
      return text(result) === "claimed";
    },

    async pendingExports(receiver, { skip, limit }) {
      const roots = texts(await link.command("zrange", keys.exports(receiver).pending, skip, skip + limit - 1));
      if (roots.length === 0) return [];
      const cursors = await cursorsOf(receiver, roots);
      return roots.map((root, index) => ({ root, seq: 0, hash: "", ...cursors[index] }));
    },

    async noteExport({ receiver, owner, cursors, ended, readAt }) {
      const moved = cursors.flatMap(({ root, seq, hash }) => [root, `${seq} ${hash}`]);
      const values = { owner, moved, ended, before: readAt - unlistMs };
      const [result] = replyList(await link.run("note_export", keys.exports(receiver), values));
      return text(result) === "noted";
    },

    async exportLosses() {
      const lost = receivers.map(async (receiver) => {
        const count = number(await link.command("hget", keys.exports(receiver).receiver, "lost"));
        return [receiver, count] as const;
      });
      return new Map(await Promise.all(lost));
    },
  };

  return {
    port,

    /** Lists a chain to which a step appends. The step does not wait for it. */
    append(root: string): void {
      if (receivers.length === 0 || (listed.get(root) ?? 0) > link.now() - listMs) return;
      setNewest(listed, root, link.now(), maxListed);
      list(root).catch(() => listed.delete(root));
    },

    /** Returns the numbers of the last records of a chain that receivers accepted, and lists it where it has later ones. */
    async acceptedOf(root: string): Promise<{ receiver: string; seq: number }[]> {
      if (receivers.length === 0) return [];
      const last = replyList(await link.command("xrevrange", keys.tree(root).audit, "+", "-", "COUNT", 1));
      const lastSeq = Number.parseInt(text(replyList(last[0] ?? [])[0] ?? null) || "0", 10);
      const found = [];
      for (const receiver of receivers) {
        const [{ seq } = { seq: 0 }] = await cursorsOf(receiver, [root]);
        if (seq < lastSeq) await list(root, [receiver]);
        found.push({ receiver, seq });
      }
      return found;
    },

    /** Counts records that are removed before a receiver accepted them. */
    async lose(receiver: string, count: number): Promise<void> {
      if (count > 0) await link.command("hincrby", keys.exports(receiver).receiver, "lost", count);
    },

    /** Removes the cursors of a chain that is gone. */
    async forget(root: string): Promise<void> {
      for (const receiver of receivers) await link.command("hdel", keys.exports(receiver).cursors, root);
    },
  };
}

function cursorOf(stored: Reply): { seq: number; hash: string } {
  const [seq = "0", hash = ""] = text(stored).split(" ");
  return { seq: Number(seq), hash };
}

/** Time after which a replica lists a chain again; the longer one, after which a chain without new records is no longer listed. */
const listMs = 10_000;
const unlistMs = 60_000;
const maxListed = 10_000;
