import type { CallRef } from "../../core/call-ref.ts";
import { callName } from "./call-records.ts";

/** The calls whose leases this process has to renew, by owner and tree. The store knows who really holds them. */
export type HeldCalls = ReturnType<typeof createHeldCalls>;

/** Remembers what was opened or claimed, until it is known to have ended or to be somebody else's. */
export function createHeldCalls() {
  const owners = new Map<string, Map<string, CallRef>>();

  const keyOf = (ref: CallRef) => `${ref.root}:${callName(ref)}`;

  function drop(owner: string, ref: CallRef): void {
    const calls = owners.get(owner);
    calls?.delete(keyOf(ref));
    if (calls?.size === 0) owners.delete(owner);
  }

  return {
    drop,

    add(owner: string, ref: CallRef): void {
      owners.set(owner, (owners.get(owner) ?? new Map<string, CallRef>()).set(keyOf(ref), ref));
    },

    /** Drops a call that has ended, whoever held it. */
    ended(ref: CallRef): void {
      for (const owner of owners.keys()) drop(owner, ref);
    },

    /** The calls of an owner, some of one tree at a time. */
    portions(owner: string): CallRef[][] {
      const byRoot = Map.groupBy(owners.get(owner)?.values() ?? [], ({ root }) => root);
      return [...byRoot.values()].flatMap((refs) =>
        Array.from({ length: Math.ceil(refs.length / portion) }, (_, index) =>
          refs.slice(index * portion, (index + 1) * portion),
        ),
      );
    },

    clear: () => owners.clear(),
  };
}

const portion = 100;
