import type { CallRef } from "../../core/call-ref.ts";
import { callName } from "./call-records.ts";

/** The calls whose leases this process renews, by owner and tree. Only the store knows the actual owners. */
export type HeldCalls = ReturnType<typeof createHeldCalls>;

/** Records opened and claimed calls, until they are known to have ended or to have another owner. */
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

    /** Drops an ended call of any owner. */
    ended(ref: CallRef): void {
      for (const owner of owners.keys()) drop(owner, ref);
    },

    /** Groups the calls of an owner by tree, in portions. */
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
