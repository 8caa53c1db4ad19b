import type { OrphanedCall } from "../../call/ports.ts";
import type { CallRef } from "../../core/call-ref.ts";
import { callName, ids, type RedisCallRecords } from "./call-records.ts";
import type { HeldCalls } from "./held-calls.ts";
import type { Keys } from "./keys.ts";
import type { Link } from "./link.ts";
import type { Live } from "./live.ts";
import { replyList, texts } from "./reply.ts";

/** Creates the operations on leases. */
export function createLeases(options: {
  link: Link;
  keys: Keys;
  live: Live;
  records: RedisCallRecords;
  held: HeldCalls;
  /** Moves the grants in a tree's outbox to their slots. */
  drainOutbox: (root: string) => Promise<void>;
}) {
  const { link, keys, live, records, held, drainOutbox } = options;

  /** Runs a script on all calls that an owner holds; returns the calls that it named, and the rest. */
  async function onHeld(script: "renew_leases" | "release_calls", owner: string, values: object) {
    const results = await Promise.all(
      held.portions(owner).map(async (refs) => {
        const tree = keys.tree(refs[0]?.root ?? "");
        const names = refs.map(callName);
        const callKeys = Object.fromEntries(names.map((name) => [`call ${name}`, tree.call(name)]));
        const [result] = replyList(
          await link.run(script, { leases: tree.leases, ...callKeys }, { ...values, owner, names }),
        );
        const named = new Set(texts(result));
        return Map.groupBy(refs, (ref) => named.has(callName(ref)));
      }),
    );
    const all = (named: boolean): CallRef[] => results.flatMap((groups) => groups.get(named) ?? []);
    return { named: all(true), rest: all(false) };
  }

  return {
    async renew(owner: string, leaseMs: number): Promise<CallRef[]> {
      const { named, rest } = await onHeld("renew_leases", owner, { leaseMs });
      for (const ref of rest) held.drop(owner, ref);
      return named;
    },

    async release(owner: string): Promise<void> {
      const { named } = await onHeld("release_calls", owner, {});
      for (const ref of named) held.drop(owner, ref);
      await Promise.all([...new Set(named.map(({ root }) => root))].map((root) => live.sooner(root, link.now())));
    },

    /** Lists open calls without a live lease, the longest orphaned first. */
    async orphans(limit: number): Promise<OrphanedCall[]> {
      const trees = await live.checkDue(limit);
      await Promise.all(trees.filter(({ outbox }) => outbox > 0).map(({ root }) => drainOutbox(root)));
      const found = await Promise.all(
        trees.map(async ({ root, lapsed }) => {
          // A call may have ended since its lease was read.
          const calls = (await records.named(root, lapsed)).filter((call) => !call.has("ended"));
          return calls.map((call) => ({
            record: records.decode(root, call),
            started: call.number("started") === 1,
            openAsks: ids(call.text("waiting")).length,
            since: Math.max(call.number("lease"), call.number("settled")),
          }));
        }),
      );
      return found
        .flat()
        .filter(({ record }) => record.owner === "")
        .sort((one, other) => one.since - other.since)
        .slice(0, limit);
    },
  };
}
