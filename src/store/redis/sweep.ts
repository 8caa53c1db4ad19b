import type { Retention } from "../../call/ports.ts";
import { dayMs, recordRetentionMs } from "../retention.ts";
import type { GrantContext } from "./grants.ts";
import { sweepTree, type TreeSweepContext } from "./sweep-tree.ts";

/** Creates the function that removes records past their retention, and renews the TTLs of the others. */
export function createRedisSweep(context: TreeSweepContext & Pick<GrantContext, "slots">): Retention["sweep"] {
  return async () => {
    const outputs = [];
    for await (const roots of context.rootListing.all()) {
      for (const root of roots) outputs.push(...(await sweepTree(context, root)));
    }
    for await (const grantIds of context.slots.listing.all()) {
      for (const id of grantIds) await sweepGrant(context, id);
    }
    await context.audit.sweep();
    return { outputs };
  };
}

/** Removes a grant that has been dead for long, or a listed id without a grant; renews the TTL of the others. */
async function sweepGrant({ link, keys, slots }: Pick<GrantContext, "link" | "keys" | "slots">, id: string) {
  const place = await slots.placeOf(id);
  const grant = place && (await slots.load(id, place));
  const before = link.now() - recordRetentionMs;
  const isOld = (time: number) => time > 0 && time <= before;
  if (place !== undefined && grant !== undefined && !isOld(grant.revoked) && !isOld(grant.expires)) {
    await link.command("pexpire", keys.grantPlace(id), recordRetentionMs + dayMs);
    return;
  }
  const entered = (await slots.listing.placeOf(id)) ?? 0;
  if (grant === undefined && entered / 1_000 > link.now() - dayMs) return;
  if (place !== undefined && grant !== undefined) {
    const slot = slots.slotOf(id, place);
    await link.command("hdel", slot.grants, id);
    await link.command("hdel", slot.revoked, id);
    await link.command("hdel", slot.used, id);
    if (place.workspace !== undefined) await link.command("del", slot.users);
  }
  await slots.listing.remove(id);
  await link.command("del", keys.grantPlace(id));
}
