import { readFileSync } from "node:fs";
import { rename, writeFile } from "node:fs/promises";
import { z } from "zod";
import { type Connection, encodeStep, evaluateScript } from "./connection.ts";
import { adoptGenerations } from "./histories.ts";
import { allShards } from "./keys.ts";
import { number, type Reply, replyList, text } from "./reply.ts";

const form = z.object({ storeId: z.string(), count: z.number() });

/** Continues with what the last process of this replica knew: a restore while no process runs is found so. */
export function recallCounter({ counter, counterFile, log }: Connection): void {
  if (counterFile === undefined) return;
  try {
    const { storeId, count } = form.parse(JSON.parse(readFileSync(counterFile, "utf8")));
    Object.assign(counter, { storeId, known: count });
  } catch {
    log.info(
      "this replica has no memory of its Redis yet: if that was set back to an older state before this start, it is not noticed",
      { path: counterFile },
    );
  }
}

/**
 * Returns true if the store is at an earlier state than this replica knows. Its sessions then have another generation, so that open calls
 * end, and its grants are suspended. The caller gives it another id.
 */
export async function isSetBack(connection: Connection): Promise<boolean> {
  const { counter, keys, log, replica, storeId } = connection;
  if (counter.storeId !== storeId) Object.assign(counter, { storeId, known: 0, raised: undefined });
  const values = { known: replica === undefined ? 0 : counter.known, shards: allShards };
  const step = encodeStep({ counter: keys.counter, generations: keys.generations }, values, {});
  const [state, restored, ...generations] = replyList(await evaluateScript(connection, "check_counter", step)).map(
    text,
  );
  counter.restored = Number(restored);
  adoptGenerations(connection, generations);
  if (state !== "back") return false;
  log.error(
    "Redis was set back to an older state: it is another store now, its open calls end, and its grants are suspended until `toolgate grants confirm` confirms them",
    { reason: storeId },
  );
  return true;
}

/** Raises the counter, once enough copies have the raise; stores outside of Redis how far it was raised for certain. */
export async function raiseCounter(
  connection: Connection,
  confirmed: (key: string, send: () => Promise<Reply>) => Promise<Reply>,
): Promise<void> {
  const { counter, keys, storeId } = connection;
  const step = encodeStep({ counter: keys.counter }, {}, {});
  const count = number(await confirmed(keys.counter, () => evaluateScript(connection, "raise_counter", step)));
  const { raised } = counter;
  // Another check has found another store meanwhile.
  if (counter.storeId !== storeId || connection.storeId !== storeId) return;
  const at = performance.now();
  if (raised === undefined || at - raised.at >= maxLossMs) counter.raised = { count, at };
  if (raised === undefined || at - raised.at < maxLossMs || count <= raised.count) return;
  counter.known = raised.count;
  await storeCounter(connection);
}

async function storeCounter({ counter, counterFile, log }: Connection): Promise<void> {
  if (counterFile === undefined) return;
  const { storeId, known: count } = counter;
  try {
    await writeFile(`${counterFile}.new`, JSON.stringify({ storeId, count } satisfies z.infer<typeof form>), {
      mode: 0o600,
    });
    await rename(`${counterFile}.new`, counterFile);
  } catch (error) {
    log.warn(
      "the counter of Redis cannot be stored: if Redis is set back while this replica is stopped, that is not noticed",
      {
        error,
      },
    );
  }
}

/** Age below which a raise may be lost with the server's machine, by `appendfsync everysec`: its loss is no restore. */
const maxLossMs = 3_000;
