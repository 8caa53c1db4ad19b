import type { OrphanedCall } from "../../call/ports.ts";
import type { CallRef } from "../../core/call-ref.ts";
import { callName } from "./call-records.ts";
import type { HeldCalls, HeldLease } from "./held-calls.ts";
import type { Keys } from "./keys.ts";
import type { Link } from "./link.ts";
import type { Live } from "./live.ts";
import { number, replyList, text, texts } from "./reply.ts";

/** Creates the operations on leases. */
export function createLeases(options: {
  link: Link;
  keys: Keys;
  live: Live;
  held: HeldCalls;
  /** Moves the grants in a tree's outbox to their slots. */
  drainOutbox: (root: string) => Promise<void>;
}) {
  const { link, keys, live, held, drainOutbox } = options;

  /** Runs a script on all calls that an owner holds; returns the calls that it named, and the rest. */
  async function onHeld(script: "renew_leases" | "release_calls", owner: string, values: object) {
    const results = await Promise.all(
      held.portions(owner).map(async (calls) => {
        const tree = keys.tree(calls[0]?.ref.root ?? "");
        const names = calls.map(({ ref }) => callName(ref));
        const callKeys = Object.fromEntries(names.map((name) => [`call ${name}`, tree.call(name)]));
        const [result] = replyList(
          await link.run(script, { leases: tree.leases, ...callKeys }, { ...values, owner, names }),
        );
        const named = new Set(texts(result));
        return Map.groupBy(calls, ({ ref }) => named.has(callName(ref)));
      }),
    );
    const all = (named: boolean): HeldLease[] => results.flatMap((groups) => groups.get(named) ?? []);
    return { named: all(true), rest: all(false) };
  }

  /**
   * Finds the orphans among calls of a tree: meanwhile some may have ended or have an owner again. A call whose asks are settled needs no
   * lease to lapse: earlier versions settled without ending the wait.
   */
  async function orphansAmong(root: string, names: readonly string[]): Promise<OrphanedCall[]> {
    const states = replyList(await link.read("read_leases", names.map(keys.tree(root).call)));
    return names.flatMap((name, index) => {
      const [lease, started, settled, ended, collectMs, mark, until, definition, owner, waiting] = replyList(
        states[index],
      );
      const isStarted = text(started) === "1";
      if (lease === undefined || text(ended) !== "") return [];
      const delegated = text(collectMs) !== "";
      const isLeft = !isStarted && !delegated && text(until) === "" && text(owner) === "" && text(waiting) === "";
      const isSettled = isLeft && number(settled) > 0;
      if (number(lease) > link.now() && !isSettled) return [];
      const orphan = { ref: toRef(root, name), started: isStarted, delegated };
      const remote = text(mark) === "" ? {} : { remote: JSON.parse(text(mark)) };
      const queued = text(until) === "" ? {} : { queued: { definitionId: text(definition), until: number(until) } };
      return [
        {
          ...orphan,
          since: isSettled ? number(settled) : Math.max(number(lease), number(settled)),
          ...remote,
          ...queued,
        },
      ];
    });
  }

  return {
    async renew(owner: string, leaseMs: number): Promise<CallRef[]> {
      const { named, rest } = await onHeld("renew_leases", owner, { leaseMs });
      for (const call of rest) held.drop(owner, call);
      return named.map(({ ref }) => ref);
    },

    async release(owner: string): Promise<void> {
      const { named } = await onHeld("release_calls", owner, {});
      for (const call of named) held.drop(owner, call);
      await Promise.all([...new Set(named.map(({ ref }) => ref.root))].map((root) => live.sooner(root, link.now())));
    },

    /** Lists all orphaned calls, the longest orphaned first. */
    async orphans(): Promise<OrphanedCall[]> {
      const trees = await live.checkDue();
      await Promise.all(trees.filter(({ outbox }) => outbox > 0).map(({ root }) => drainOutbox(root)));
      const found = await Promise.all(
        trees.flatMap(({ root, calls }) => portionsOf(calls).map((names) => orphansAmong(root, names))),
      );
      return found.flat().sort((one, other) => one.since - other.since);
    },
  };
}

const portion = 500;

function portionsOf(names: readonly string[]): string[][] {
  return Array.from({ length: Math.ceil(names.length / portion) }, (_, index) =>
    names.slice(index * portion, (index + 1) * portion),
  );
}

function toRef(root: string, name: string): CallRef {
  const at = name.indexOf(":");
  return { root, sessionId: name.slice(0, at), callId: name.slice(at + 1) };
}
