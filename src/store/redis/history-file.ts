import { readFileSync } from "node:fs";
import { rename, writeFile } from "node:fs/promises";
import { z } from "zod";
import type { Connection } from "./connection.ts";
import { allShards } from "./keys.ts";

const form = z.object({
  storeId: z.string(),
  isStrict: z.boolean(),
  /** Offset up to which each history was acknowledged. */
  acknowledged: z.record(z.string(), z.number()),
});

/**
 * Continues with what this replica's last process knew of the histories of this store, so that a failover while no process ran is
 * compared as well. A file that is missing or unreadable, or is of another store, is no knowledge.
 */
export function recallHistories(connection: Connection): void {
  const { historyFile, storeId, acknowledged } = connection;
  if (historyFile === undefined) return;
  let stored: z.infer<typeof form>;
  try {
    stored = form.parse(JSON.parse(readFileSync(historyFile, "utf8")));
  } catch {
    return;
  }
  if (stored.storeId !== storeId) return;
  for (const [id, offset] of Object.entries(stored.acknowledged)) acknowledged.set(id, offset);
  connection.histories = new Map([...acknowledged.keys()].map((id) => [id, allShards]));
  connection.isReplicated = true;
  connection.isStrict ||= stored.isStrict;
}

/** Stores what this replica knows of the histories. After a kill the file lacks the offsets of the last seconds. */
export async function storeHistories(connection: Connection): Promise<void> {
  const { historyFile, storeId, histories, acknowledged, isReplicated, isStrict, log } = connection;
  if (historyFile === undefined || !isReplicated) return;
  const offsets = Object.fromEntries([...histories.keys()].map((id) => [id, acknowledged.get(id) ?? -1]));
  const text = JSON.stringify({ storeId, isStrict, acknowledged: offsets } satisfies z.infer<typeof form>);
  try {
    await writeFile(`${historyFile}.new`, text, { mode: 0o600 });
    await rename(`${historyFile}.new`, historyFile);
  } catch (error) {
    log.warn("the histories of Redis cannot be stored: a failover while this replica is stopped is not noticed", {
      error,
    });
  }
}
