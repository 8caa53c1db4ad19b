import type { CallStore, Store } from "../../src/call/ports.ts";

/** A store as seen by one replica. */
export interface Reach {
  ports: Store;
  /** Aborted when the replica is dead. */
  gone: AbortSignal;
  /** Kills the replica: no step begins from now on, and no result reaches it. Resolves when the steps under way have ended. */
  cut(): Promise<void>;
}

/** Delays a store: each step takes some turns of the event loop in each direction, so that steps overtake each other. */
export function createReach({ calls, permissions, outputs }: Store, turns: () => number): Reach {
  const dead = new AbortController();
  const underWay = new Set<Promise<unknown>>();
  const listening = new Set<() => void>();

  async function step(run: () => unknown): Promise<unknown> {
    await pass(turns());
    dead.signal.throwIfAborted();
    const done = Promise.resolve(run()).finally(() => underWay.delete(done));
    underWay.add(done);
    try {
      return await done;
    } finally {
      await pass(turns());
      dead.signal.throwIfAborted();
    }
  }

  const onNews: CallStore["onNews"] = (sessionId, listener) => {
    // The death wakes listeners too: their next step fails.
    const wake = () => listener(sessionId ?? "", 0);
    const off = calls.onNews(sessionId, listener);
    listening.add(wake);
    return () => {
      listening.delete(wake);
      off();
    };
  };

  // A notice reaches the dead no more.
  const onUnclaimed: CallStore["onUnclaimed"] = (listener) =>
    calls.onUnclaimed((call) => {
      if (!dead.signal.aborted) listener(call);
    });

  function through<Port extends object>(port: Port): Port {
    return new Proxy(port, {
      get(target, name) {
        const member: unknown = Reflect.get(target, name, target);
        if (name === "onNews") return onNews;
        if (name === "onUnclaimed") return onUnclaimed;
        if (typeof member !== "function" || name === "now" || name === "storeIdOf") return member;
        return (...given: unknown[]) => step(() => Reflect.apply(member, target, given));
      },
    });
  }

  return {
    ports: { calls: through(calls), permissions: through(permissions), outputs: through(outputs) },
    gone: dead.signal,
    async cut() {
      dead.abort(new ReplicaDied());
      for (const wake of [...listening]) wake();
      while (underWay.size > 0) await Promise.allSettled(underWay);
    },
  };
}

/** Thrown by every step of a dead replica. */
export class ReplicaDied extends Error {
  override name = "ReplicaDied";
}

async function pass(turns: number): Promise<void> {
  for (let left = turns; left > 0; left--) await new Promise<void>((resolve) => setImmediate(resolve));
}
