import { create } from "@bufbuild/protobuf";
import { type Grant, GrantSchema, GrantScope } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import type { CallRef } from "../../core/call-ref.ts";
import { useOf, withLeft } from "../grant-uses.ts";
import { decodeSealed } from "./events.ts";
import type { Keys } from "./keys.ts";
import type { Link } from "./link.ts";
import { createListing } from "./listing.ts";
import { bytes, fields, number, pairs, type Reply, text } from "./reply.ts";

/** Storage of grants: those of a session tree in its slot, wider ones in the slot of their workspace. */
export type GrantSlots = ReturnType<typeof createGrantSlots>;

/** Location of a grant: the tree that created it, and for a wider one the workspace. */
export interface GrantPlace {
  root: string;
  workspace?: string;
}

/** Decodes a stored grant. */
export const decodeGrant = (saved: Uint8Array): Grant => decodeSealed(GrantSchema, saved, "a grant");

/** Reads and moves grants. The place of a grant is written before the grant, so that every grant has one. */
export function createGrantSlots({ link, keys }: { link: Link; keys: Keys }) {
  const listing = createListing({ link, keys, name: "grants" });

  function slotOf(id: string, { root, workspace }: GrantPlace) {
    if (workspace !== undefined) {
      const { users, ...hashes } = keys.workspace(workspace);
      return { ...hashes, users: users(id) };
    }
    const { grants, revoked, used, confirmed, uses, users } = keys.tree(root);
    return { grants, revoked, used, confirmed, uses, users };
  }

  async function placeOf(id: string): Promise<GrantPlace | undefined> {
    const place = text(await link.command("get", keys.grantPlace(id)));
    return place === "" ? undefined : JSON.parse(place);
  }

  /** Sets when a restore suspended a grant: the last one after it was created, unless it was confirmed since. */
  function withSuspension(grant: Grant, confirmed = 0): Grant {
    const restored = link.restored();
    return restored > Math.max(grant.created, confirmed) ? { ...grant, suspended: restored } : grant;
  }

  async function load(id: string, place: GrantPlace): Promise<Grant | undefined> {
    const slot = slotOf(id, place);
    const [saved, uses, ...times] = await Promise.all(
      [slot.grants, slot.uses, slot.revoked, slot.used, slot.confirmed].map((hash) => link.command("hget", hash, id)),
    );
    const found = bytes(saved ?? null);
    const [revoked = 0, lastUsed = 0, confirmed] = times.map(number);
    const grant = found && withLeft({ ...decodeGrant(found), revoked, lastUsed }, text(uses));
    return grant && withSuspension(grant, confirmed);
  }

  /** Moves a tree's wider grants from its outbox to their workspaces' slots. */
  async function drainOutbox(root: string): Promise<void> {
    const { outbox } = keys.tree(root);
    for (const [id, saved] of pairs((await link.hashes(outbox))[0])) {
      const { workspace } = decodeGrant(saved);
      const { grants, users } = slotOf(id, { root, workspace });
      await link.run("save_grant", { grants, users }, { id, root }, { grant: saved });
      await link.command("hdel", outbox, id);
    }
  }

  return {
    listing,
    slotOf,
    placeOf,
    load,
    drainOutbox,
    withSuspension,

    /** Finds a grant and its place; drains the outbox of its tree first if the grant is still there. */
    async find(id: string): Promise<{ grant: Grant; place: GrantPlace } | undefined> {
      const place = await placeOf(id);
      if (place === undefined) return undefined;
      const saved = await load(id, place);
      if (saved === undefined && place.workspace !== undefined) await drainOutbox(place.root);
      const grant = saved ?? (place.workspace === undefined ? undefined : await load(id, place));
      return grant && { grant, place };
    },

    /** Writes the place of a grant and lists its id, before the grant itself is written. */
    async announce(root: string, { id, scope, workspace }: Grant): Promise<void> {
      const place: GrantPlace = scope === GrantScope.SESSION ? { root } : { root, workspace };
      await Promise.all([
        link.run("point_to", { pointer: keys.grantPlace(id) }, { seen: "", target: JSON.stringify(place) }),
        listing.enter(id),
      ]);
    },

    /** Reads all grants of a slot, for a call with its uses as left, and further hashes of the same slot in the same snapshot. */
    async readSlot(
      { grants, revoked, used, confirmed, uses }: Record<"grants" | "revoked" | "used" | "confirmed" | "uses", string>,
      more: string[] = [],
      call?: CallRef,
    ): Promise<[Grant[], ...Reply[]]> {
      const [saved, dead, last, confirmations, counted, ...others] = await link.hashes(
        ...[grants, revoked, used, confirmed, uses],
        ...more,
      );
      const [ends, lastUses, known, taken] = [fields(dead), fields(last), fields(confirmations), fields(counted)];
      const use = call && useOf(call);
      const decode = ([id, found]: [string, Buffer]) => {
        const times = { revoked: ends?.number(id) ?? 0, lastUsed: lastUses?.number(id) ?? 0 };
        const grant = withLeft({ ...decodeGrant(found), ...times }, taken?.text(id) ?? "", use);
        return create(GrantSchema, withSuspension(grant, known?.number(id)));
      };
      return [pairs(saved).map(decode), ...others];
    },
  };
}
