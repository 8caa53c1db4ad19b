import type { CallRef } from "../../core/call-ref.ts";
import { callName } from "./call-records.ts";

/** The calls whose leases this process renews, by owner and tree. Only the store knows the actual owners. */
export type HeldCalls = ReturnType<typeof createHeldCalls>;

/** One lease on a call. A later lease of the same owner on the same call is another object. */
export interface HeldLease {
  readonly ref: CallRef;
}

/** Records opened and claimed calls, until they are known to have ended or to have another owner. */
export function createHeldCalls() {
  const owners = new Map<string, Map<string, HeldLease>>();

  const keyOf = (ref: CallRef) => `${ref.root}:${callName(ref)}`;

  /** Drops one lease. What a step finds out about an earlier one, in whatever order answers come, does not touch a later one. */
  function drop(owner: string, held: HeldLease | undefined): void {
    const calls = owners.get(owner);
    if (calls === undefined || held === undefined || calls.get(keyOf(held.ref)) !== held) return;
    calls.delete(keyOf(held.ref));
    if (calls.size === 0) owners.delete(owner);
  }

  const get = (owner: string, ref: CallRef) => owners.get(owner)?.get(keyOf(ref));

  return {
    get,
    drop,

    add(owner: string, ref: CallRef): void {
      owners.set(owner, (owners.get(owner) ?? new Map<string, HeldLease>()).set(keyOf(ref), { ref }));
    },

    /** Drops an ended call of any owner. */
    ended(ref: CallRef): void {
      for (const owner of owners.keys()) drop(owner, get(owner, ref));
    },

    /** Groups the calls of an owner by tree, in portions. */
    portions(owner: string): HeldLease[][] {
      const byRoot = Map.groupBy(owners.get(owner)?.values() ?? [], ({ ref }) => ref.root);
      return [...byRoot.values()].flatMap((calls) =>
        Array.from({ length: Math.ceil(calls.length / portion) }, (_, index) =>
          calls.slice(index * portion, (index + 1) * portion),
        ),
      );
    },

    clear: () => owners.clear(),
  };
}

const portion = 100;
