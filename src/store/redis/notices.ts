import type { NewNotice, NoticeKey, NoticePhase, NoticeQueue, NoticeStore, StoredNotice } from "../../reach/ports.ts";
import type { RedisAsks } from "./asks.ts";
import { withPlaces } from "./listing.ts";
import { number, replyList, text, texts } from "./reply.ts";
import type { RedisCallContext } from "./steps.ts";

/**
 * Creates the port of notices. Those of a tree are in its slot, written by the steps that open and settle its requests; the time of the
 * earliest one is part of the tree's next check.
 */
export function createRedisNotices(
  context: Pick<RedisCallContext, "link" | "keys" | "live" | "runStep"> & { asks: Pick<RedisAsks, "find"> },
): NoticeStore {
  const { link, keys, live, runStep, asks } = context;
  return {
    async claimNotices({ owner, leaseMs, channels }) {
      const free = new Map(channels);
      const claimed = [];
      for (const root of await live.due()) {
        const { notices, noticeDue } = keys.tree(root);
        // Looks first, so that nothing is written where nothing is due.
        if (number(await link.command("zcount", noticeDue, "-inf", link.now())) === 0) continue;
        const values = { owner, leaseMs, channels: Object.fromEntries(free) };
        const found = replyList(await runStep("claim_notices", root, { notices, noticeDue }, values));
        for (let at = 0; at < found.length; at += 4) {
          const [name, phase, attempts, ref] = found.slice(at, at + 4);
          const notice = { ...keyOf(text(name)), phase: text(phase) as NoticePhase };
          claimed.push({ ...notice, attempts: number(attempts), ref: text(ref) });
          free.set(notice.channel, (free.get(notice.channel) ?? 0) - 1);
        }
      }
      return claimed;
    },

    async noteNotice({ phase, ...key }, owner, result) {
      const root = text(await link.command("get", keys.root(key.ask)));
      if (root === "") return;
      const { notices, noticeDue } = keys.tree(root);
      const values = { notice: nameOf(key), phase, owner, ...result };
      await link.run("note_notice", { notices, noticeDue }, values);
      if (result.result === "retry") await live.sooner(root, result.at);
    },

    async countNotices() {
      const queues = new Map<string, NoticeQueue>();
      for (const root of await live.all()) {
        const due = withPlaces(texts(await link.command("zrange", keys.tree(root).noticeDue, 0, -1, "WITHSCORES")));
        for (const { id, place } of due) {
          const { channel } = keyOf(id);
          const { waiting, oldestDue } = queues.get(channel) ?? { waiting: 0, oldestDue: place };
          queues.set(channel, { waiting: waiting + 1, oldestDue: Math.min(oldestDue, place) });
        }
      }
      return queues;
    },

    async listNotices() {
      const names = texts(await link.command("zrevrange", keys.recentNotices, 0, maxListed - 1));
      const found = await Promise.all(
        names.map(async (name): Promise<StoredNotice[]> => {
          const { ask, ...key } = keyOf(name);
          const root = text(await link.command("get", keys.root(ask)));
          const stored = root === "" ? null : await link.command("hget", keys.tree(root).notices, name);
          if (stored === null) return [];
          const { state, attempts, at, lease, why = "", opened = 0 } = JSON.parse(text(stored));
          return [{ ask, ...key, state, attempts, dueAt: Math.max(at, lease), why, opened }];
        }),
      );
      return found.flat();
    },

    findAsk: asks.find,
  };
}

/** Number of notices that are listed. */
const maxListed = 1_000;

/** Adds notices to the list of the last ones. */
export async function listNotices(
  { link, keys, now }: Pick<RedisCallContext, "link" | "keys" | "now">,
  notices: readonly NewNotice[],
): Promise<void> {
  if (notices.length === 0) return;
  await link.command("zadd", keys.recentNotices, ...notices.flatMap((notice) => [now(), nameOf(notice)]));
  await link.command("zremrangebyrank", keys.recentNotices, 0, -maxListed - 1);
}

/** Returns a notice in the form of open_asks. */
export function encodeNotice({ ask, channel, recipient, dueAt: at, owner, leaseMs, dead }: NewNotice) {
  return { ask, target: targetOf({ channel, recipient }), at, owner, leaseMs, dead };
}

const targetOf = ({ channel, recipient }: Omit<NoticeKey, "ask">) =>
  recipient === "" ? channel : `${channel} ${recipient}`;

const nameOf = ({ ask, ...target }: NoticeKey) => `${ask} ${targetOf(target)}`;

function keyOf(name: string): NoticeKey {
  const [ask = "", channel = "", recipient = ""] = name.split(" ");
  return { ask, channel, recipient };
}
