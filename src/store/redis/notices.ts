import type { NoticePhase, NoticeStore } from "../../reach/ports.ts";
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
        for (let at = 0; at < found.length; at += 5) {
          const [ask, channel, phase, attempts, ref] = found.slice(at, at + 5);
          const notice = { ask: text(ask), channel: text(channel), phase: text(phase) as NoticePhase };
          claimed.push({ ...notice, attempts: number(attempts), ref: text(ref) });
          free.set(notice.channel, (free.get(notice.channel) ?? 0) - 1);
        }
      }
      return claimed;
    },

    async noteNotice({ ask, channel, phase }, owner, result) {
      const root = text(await link.command("get", keys.root(ask)));
      if (root === "") return;
      const { notices, noticeDue } = keys.tree(root);
      const values = { notice: `${ask} ${channel}`, phase, owner, ...result };
      await link.run("note_notice", { notices, noticeDue }, values);
      if (result.result === "retry") await live.sooner(root, result.at);
    },

    async countNotices() {
      const found = await Promise.all(
        (await live.all()).map(async (root) => {
          const { noticeDue } = keys.tree(root);
          const count = number(await link.command("zcard", noticeDue));
          return { count, first: withPlaces(texts(await link.command("zrange", noticeDue, 0, 0, "WITHSCORES"))) };
        }),
      );
      const waiting = found.reduce((sum, { count }) => sum + count, 0);
      return waiting === 0
        ? { waiting }
        : { waiting, oldestDue: Math.min(...found.flatMap(({ first }) => first.map(({ place }) => place))) };
    },

    findAsk: asks.find,
  };
}
