import { Cluster } from "ioredis";
import { type Client, leaveRedis } from "./client.ts";
import { parseReplication, type Replication } from "./copies.ts";
import { type Keys, slotOf } from "./keys.ts";

/** Confirmations that enough copies have what a server has answered. */
export type Confirmations = ReturnType<typeof createConfirmations>;

/** Calls that share the next confirmation of one server. */
interface Batch {
  /** A key of that server. */
  key: string;
  readonly done: PromiseWithResolvers<void>;
}

/** One server: its confirmation that is under way, and the next one. */
interface Queue {
  isBusy: boolean;
  next: Batch | undefined;
}

/**
 * Creates the confirmations, over a connection that nothing else uses, since WAIT blocks it. A server gets one WAIT at a time: those
 * that ask meanwhile share the next one. `observe` throws if the server does not continue the known history.
 */
export function createConfirmations(options: {
  connect: () => Client;
  keys: Keys;
  /** Number of copies that are enough. */
  required: () => number;
  observe: (found: Replication) => void;
  /** Takes note of what enough copies have. */
  noteConfirmed: (found: Replication) => void;
}) {
  const { connect, keys, required, observe, noteConfirmed } = options;
  const queues = new Map<string, Queue>();
  let client: Client | undefined;

  /** Writes after everything that was answered, and waits until the copies have that. */
  async function confirmAt(key: string): Promise<void> {
    client ??= connect();
    const marker = keys.confirmation(key);
    const pipeline = client.pipeline([
      ["info", "replication"],
      ["set", marker, performance.now(), "PX", markerMs],
      ["wait", required(), waitMs],
    ]);
    const replies = (await pipeline.exec()) ?? [];
    const cause = replies.find(([error]) => error)?.[0];
    if (cause) throw new Error("the copies of Redis cannot be counted", { cause });
    // Its offset covers what was answered before, and nothing that is written after.
    const found = parseReplication(String(replies[0]?.[1]));
    observe(found);
    const count = Number(replies[2]?.[1]);
    if (count < required()) throw new TooFewCopies(count, required());
    noteConfirmed(found);
  }

  /** Looks for the server again, unless it only lacks copies. */
  function leave(error: unknown): void {
    if (error instanceof TooFewCopies) return;
    if (client instanceof Cluster) client.refreshSlotsCache();
    else if (client?.status === "ready") client.disconnect(true);
  }

  async function work(queue: Queue): Promise<void> {
    queue.isBusy = true;
    for (let batch = queue.next; batch; batch = queue.next) {
      // All calls of this turn share it.
      await Promise.resolve();
      queue.next = undefined;
      await confirmAt(batch.key).then(batch.done.resolve, (error: unknown) => {
        leave(error);
        batch.done.reject(error);
      });
    }
    queue.isBusy = false;
  }

  return {
    /** Resolves once enough copies have all that the server of this key has answered so far; rejects if they do not in time. */
    confirm(key: string): Promise<void> {
      const server = serverOf(client, key);
      const queue = queues.get(server) ?? { isBusy: false, next: undefined };
      queues.set(server, queue);
      queue.next ??= { key, done: Promise.withResolvers<void>() };
      const { promise } = queue.next.done;
      if (!queue.isBusy) void work(queue);
      return promise;
    },
    close: (): void => client && leaveRedis(client),
  };
}

class TooFewCopies extends Error {
  override name = "TooFewCopies";
  constructor(count: number, required: number) {
    super(
      `${count} of ${required} required copies of Redis have the write, and a failover could lose it: bring the other copies back, or set store_copies if they are gone for good`,
    );
  }
}

/** Names the server of a key, as far as it is known. */
function serverOf(client: Client | undefined, key: string): string {
  if (!(client instanceof Cluster)) return "";
  return client.slots[slotOf(key)]?.[0] ?? key;
}

/** Time that the copies have. */
const waitMs = 1_000;
const markerMs = 60_000;
