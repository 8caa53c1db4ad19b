import type { Retention } from "../../call/ports.ts";
import type { Logger } from "../../core/logger.ts";
import { DamagedRecord } from "../checksum.ts";
import { countRemoved, type RemovedCounts, removedInWords } from "../removed.ts";
import { dayMs, recordRetentionMs } from "../retention.ts";
import type { GrantContext } from "./grants.ts";
import { sweepTree, type TreeSweepContext, trimAudit } from "./sweep-tree.ts";

/** State that the sweep needs. */
interface SweepContext extends TreeSweepContext, Pick<GrantContext, "slots"> {
  readonly log: Logger;
}

/**
 * Creates the function that removes records past their retention. No key of a record has a TTL: Redis' clock may jump, and the time of
 * the store does not.
 */
export function createRedisSweep(context: SweepContext): Retention["sweep"] {
  let isFirst = true;
  return async () => {
    const { rootListing, slots, audit, log } = context;
    const outputs: { root: string; id: string }[] = [];
    const removed: RemovedCounts = {};
    for await (const roots of rootListing.all()) {
      for (const root of roots) {
        const swept = await unlessDamaged(sweepTree(context, root, removed, isFirst), context);
        outputs.push(...(swept ?? []));
      }
    }
    for await (const grantIds of slots.listing.all()) {
      for (const id of grantIds) await unlessDamaged(sweepGrant(context, id, removed, isFirst), context);
    }
    await audit.sweep(async (root) => trimAudit(context, root, removed));
    isFirst = false;
    removed.outputs = outputs.length;
    const words = removedInWords(removed);
    if (words !== "") log.info(`removed after their retention time: ${words}`);
    return { outputs };
  };
}

/** Awaits a part of the sweep. Damage in it is logged and leaves it as it is; the other parts go on. */
async function unlessDamaged<T>(part: Promise<T>, { damage }: Pick<SweepContext, "damage">): Promise<T | undefined> {
  try {
    return await part;
  } catch (error) {
    if (!(error instanceof DamagedRecord)) throw error;
    damage.refusal(error);
    return undefined;
  }
}

/** Removes a grant that has been dead for long, or a listed id without a grant. */
async function sweepGrant(
  { link, keys, slots }: Pick<GrantContext, "link" | "keys" | "slots">,
  id: string,
  removed: RemovedCounts,
  isFirst: boolean,
): Promise<void> {
  const place = await slots.placeOf(id);
  const grant = place && (await slots.load(id, place));
  const before = link.now() - recordRetentionMs;
  const isOld = (time: number) => time > 0 && time <= before;
  if (place !== undefined && grant !== undefined && !isOld(grant.revoked) && !isOld(grant.expires)) {
    // Versions before this one set a TTL.
    if (isFirst) await link.command("persist", keys.grantPlace(id));
    return;
  }
  const entered = (await slots.listing.placeOf(id)) ?? 0;
  if (grant === undefined && entered / 1_000 > link.now() - dayMs) return;
  if (place !== undefined && grant !== undefined) {
    const slot = slots.slotOf(id, place);
    await link.command("hdel", slot.grants, id);
    await link.command("hdel", slot.revoked, id);
    await link.command("hdel", slot.used, id);
    await link.command("hdel", slot.confirmed, id);
    if (place.workspace !== undefined) await link.command("del", slot.users);
    countRemoved(removed, "grants", 1);
  }
  await slots.listing.remove(id);
  await link.command("del", keys.grantPlace(id));
}
